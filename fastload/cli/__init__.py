"""The `fastload` command: one thin module a verb. Parse, call the library, print."""

"""Attachments: source files that belong to a sequence or the whole dataset, kept as they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastload.errors import CorruptError
from fastload.store.advice import advise, advise_pages
from fastload.store.files import explain_read_error, read_at
from fastload.store.reader import Store
from fastload.store.record import ATTACHMENT_BIT, INFO_KEY, PREFIX_BYTES, DamageError, check_body
from fastload.store.scan import read_headers


def read_attachments(store: Store) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Path and bytes, (n,) uint8, of each attachment, in order of their keys.

    Raises:
        CorruptError: a shard that holds some is missing or damaged.
    """
    for number, shard in enumerate(store.manifest.shards):
        if not shard.attachments:
            continue
        file = store.open_shard(number)
        path = store.root / shard.file
        found = 0
        which = "an attachment"
        try:
            for key, offset, prefix, header in read_headers(file.fd):
                if key & ATTACHMENT_BIT and key != INFO_KEY:
                    which = f"attachment {header.name}"
                    start = PREFIX_BYTES + prefix.header_bytes
                    body = read_at(file.fd, prefix.record_bytes - start, offset + start)
                    check_body(header, body)
                    found += 1
                    which = "an attachment"
                    yield header.name, np.frombuffer(body, np.uint8)
            if found != shard.attachments:  # damaged pages can be those of an earlier, smaller state of the file
                raise DamageError(f"{found} of them", f"{shard.attachments} as dataset.json says", kind="pages")
        except DamageError as error:
            store.close()  # the file may be replaced by a sound one: the next read opens what is there then
            what_to_do = advise_pages(store.root) if error.kind == "pages" else advise(path)
            raise CorruptError(
                f"{path}: {which} is damaged or lost ({error}); {what_to_do}",
                shard=shard.file,
            ) from error
        except OSError as error:
            raise explain_read_error(error, path, "an attachment") from error

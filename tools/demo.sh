#!/usr/bin/env bash
# The main job from end to end: scans -> packed dataset -> checked -> a network trained on it. See --help.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/setup_env.sh"

usage() {
  cat <<'TEXT'
usage: bash tools/demo.sh [--data DIR] [--out DIR] [--scans N] [--points P] [--seconds S]

Set up an environment, then: simulate LiDAR scans in the SemanticKITTI layout, pack them, verify
the packed dataset, train a small network on it, and check that it has learned. Can be run again.

  --data DIR    pack this folder in the SemanticKITTI layout instead of simulated scans
  --out DIR     where to write (default: .demo in the repository); DIR/scans and DIR/packed are
                replaced if they are there from an earlier run, but for a dataset packed from --data
  --scans N     simulated scans, half for training and half for validation (default: 160)
  --points P    points that a simulated scan has (default: 20000)
  --seconds S   how long to train (default: 40)

environment variables:
  PYTHON                 the Python (3.10 or newer) to make the environment with (default: python3)
  FASTLOAD_VENV          the environment's folder (default: .venv in the repository); an existing one
                         that has all that is needed is used as it is
  FASTLOAD_CONSTRAINTS   a pip constraints file (default: tools/constraints.txt)
TEXT
}

out="$REPO/.demo" data="" scans=160 points=20000 seconds=40
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --data | --out | --scans | --points | --seconds)
      [ $# -ge 2 ] || fail "$1 needs a value; see --help" 2
      case "$1" in
        --data) data="$(absolute "$2")" ;;
        --out) out="$(absolute "$2")" ;;
        --scans) scans="$2" ;;
        --points) points="$2" ;;
        --seconds) seconds="$2" ;;
      esac
      shift 2
      ;;
    *) fail "unknown option $1; see --help" 2 ;;
  esac
done
[ -z "$data" ] || [ -d "$data" ] || fail "--data: $data is no folder" 2

set_up_environment
mkdir -p -- "$out"
packed="$(shown "$out/packed")"
simulated=""
if [ -z "$data" ]; then
  simulated=yes
  data="$(shown "$out/scans")"
  run "$VENV_PYTHON" tools/simulate_scans.py "$data" --scans "$scans" --points "$points" --sequences 2 --overwrite
fi
# A dataset may take hours to pack: what an earlier run packed from the same folder is taken as it is.
if [ -z "$simulated" ] && [ -e "$packed/dataset.json" ] && [ "$(cat "$packed.source" 2>/dev/null)" = "$data" ]; then
  echo "Using what an earlier run packed from $data; to pack it again, remove $packed first."
else
  run "$VENV_PYTHON" -m fastload pack semantickitti "$data" "$packed" --overwrite
  printf '%s\n' "$data" >"$packed.source"
fi
run "$VENV_PYTHON" -m fastload verify "$packed"
# Without a GPU: on two cores that others used too, two threads that wait for each other trained 5 times slower than one.
run env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" \
  "$VENV_PYTHON" tools/train_segmentation.py "$packed" --seconds "$seconds" --batch-size 2 --check ||
  fail "the training failed, as it says above; if its check did, give it longer: --seconds 120"

cat <<TEXT

Done: scans were packed, verified and learned from. In your own code:

    import fastload
    from torch.utils.data import DataLoader

    dataset = fastload.PackedDataset("$out/packed", split="train", fields=("points", "semantic"),
                                     label_map="semantickitti")
    loader = DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=dataset.collate)
    for batch in loader:
        points, labels, offset = batch["points"], batch["semantic"], batch["offset"]
        ...  # points (N, 4) and labels (N,) of 4 scans; the b-th one ends at offset[b]

To use it from here: source $(shown "$(dirname -- "$VENV_PYTHON")")/activate
TEXT

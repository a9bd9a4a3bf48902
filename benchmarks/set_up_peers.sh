#!/usr/bin/env bash
# Virtual environments for the peers that benchmarks/decode.py and update.py time jaxagent against:
#
#     bash benchmarks/set_up_peers.sh DIR      ->  DIR/tunix/bin/python  DIR/hf/bin/python
#
# They are kept apart from jaxagent's own environment because their pins disagree with it.
set -euo pipefail
dir="${1:?usage: set_up_peers.sh DIR}"
mkdir -p "$dir"
python3 -m venv "$dir/tunix"
"$dir/tunix/bin/pip" install -q "google-tunix==0.1.7" "jax==0.10.2"
python3 -m venv "$dir/hf"
"$dir/hf/bin/pip" install -q "torch==2.13.0" transformers
echo "tunix: $dir/tunix/bin/python"
echo "hf:    $dir/hf/bin/python"

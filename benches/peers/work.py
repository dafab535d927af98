"""What both peers share: the sizes, the work that `bench-peers` wrote, and the lines that it reads.

The files of a size hold weights by the names of `examples/peers.dtl` as `[in, out]` matrices, and `tokens` and `labels` with
a leading dimension of steps. A peer prints a line of JSON for each step, as `dtlc train --json` does.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass

import numpy as np

# The optimizer of every plan: AdamW behind a clip of the gradients' global norm.
RATE, BETA1, BETA2, EPSILON, DECAY, CLIP = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0
CLIP_EPSILON = 1e-6
NORM_EPSILON = 1e-5
THETA = 10000.0


@dataclass(frozen=True)
class Size:
    """Layers, width, query heads, key heads, hidden units, vocabulary, positions, sequences."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int
    positions: int
    sequences: int

    @property
    def head(self):
        return self.width // self.heads


SIZES = {
    "tiny": Size(2, 64, 4, 2, 176, 256, 64, 8),
    "small": Size(4, 256, 8, 4, 688, 4096, 256, 8),
    "base": Size(8, 512, 8, 8, 1376, 8192, 512, 4),
}
MESHES = {"one": 1, "dp2": 2, "tp2": 2, "tp2_sp": 2, "fsdp2": 2}
DTYPES = {"F32": np.float32, "U32": np.uint32}


def arguments(description):
    """The command line of a peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("mesh", choices=MESHES)
    parser.add_argument("folder", help="where the work lies")
    parser.add_argument("steps", type=int)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    return parser.parse_args()


def read(path):
    """The tensors of a safetensors file, which stay in the file until they are used."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, "r", 8 + length)
    return {
        name: data[slice(*entry["data_offsets"])].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


def weights(given):
    return read(f"{given.folder}/{given.size}.weights.safetensors")


def batches(given):
    """Tokens and labels of each step."""
    data = read(f"{given.folder}/{given.size}.data.safetensors")
    return list(zip(data["tokens"], data["labels"]))


def angles(size):
    """What rotary positions turn by: `[positions, head / 2]`."""
    frequency = THETA ** (-np.arange(0, size.head, 2, dtype=np.float64) / size.head)
    return np.arange(size.positions, dtype=np.float64)[:, None] * frequency


def decays(name):
    """Matrices decay, norms do not."""
    return not name.endswith("norm")


def run(steps, step, speaks=True):
    """Runs and reports steps. `step(i)` returns the loss as a number, when the step is done."""
    for index in range(steps):
        begun = time.perf_counter()
        loss = step(index)
        seconds = time.perf_counter() - begun
        if not math.isfinite(loss):
            raise SystemExit(f"the loss of step {index + 1} is {loss}")
        if speaks:
            print(json.dumps({"step": index + 1, "loss": loss, "step_ms": seconds * 1e3}), flush=True)
    sys.stdout.flush()

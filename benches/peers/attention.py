"""Times PyTorch's attention, forward and backward, for `scripts/bench-attention`.

    python attention.py HEADS POSITIONS HEAD

Prints the least seconds of a forward and backward pass together, causal, one sequence, f32, on one thread.
"""

import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

heads, positions, head = (int(word) for word in sys.argv[1:4])
limit = 2.0
torch.set_num_threads(1)
q, k, v, gradient = (torch.randn(1, heads, positions, head) for _ in range(4))
for tensor in (q, k, v):
    tensor.requires_grad_()

least, begun = float("inf"), time.perf_counter()
while time.perf_counter() - begun < limit:
    before = time.perf_counter()
    scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)
    least = min(least, time.perf_counter() - before)
    for tensor in (q, k, v):
        tensor.grad = None
print(least)

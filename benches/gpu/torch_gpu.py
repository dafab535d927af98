"""The models of `work.dtl` in PyTorch: bf16 with f32 masters by autocast, SDPA, fused AdamW; a JSON line for each step.

    python torch_gpu.py work.dtl PLAN eager|compile|dry STEPS

`dry` is for trying this script without a GPU.
"""

import json
import re
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("no PyTorch")
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
text, plan, mode, steps = open(sys.argv[1]).read(), *sys.argv[2:4], int(sys.argv[4])
if device == "cpu" and mode != "dry":
    sys.exit("PyTorch sees no GPU")
named, sequence, batch = re.search(rf"plan {plan} for (\w+) .*?seq (\d+), global (\d+)", text, re.S).groups()
model = re.search(rf"model {named} .*?(?=\n}})", text, re.S).group()
size = {name: int(value) for name, value in re.findall(r"\b([A-Z]+) = (\d+)", model)}
layer = re.search(r"repeat\[L\] (\w+)", model)
layer = layer.group(1) if layer else None
width, shape = size["D"], (int(batch), int(sequence))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.keys, self.heads = size["K"], size["KV"], size["KV"] * size["G"]
        self.wq, self.wo = linear(width, self.heads * self.head), linear(self.heads * self.head, width)
        self.wk, self.wv = linear(width, self.keys * self.head), linear(width, self.keys * self.head)
        angle = torch.outer(torch.arange(shape[1]), 10000.0 ** -(torch.arange(0, self.head, 2) / self.head))
        self.register_buffer("cosine", angle.cos()), self.register_buffer("sine", angle.sin())

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = (self.rotate(y).to(v.dtype) for y in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))

    def rotate(self, x):
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * self.cosine - high * self.sine, high * self.cosine + low * self.sine], dim=-1)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = linear(width, size["F"]), linear(width, size["F"]), linear(size["F"], width)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Residual(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        return x


def norm():
    return nn.RMSNorm(width, eps=1e-5)


def block():
    parts = {
        "Normed": lambda: [norm()],
        "Attended": lambda: [Attention()],
        "Gated": lambda: [Gate()],
        "Block": lambda: [nn.Sequential(norm(), Attention()), nn.Sequential(norm(), Gate())],
    }
    return Residual(parts[layer]())


torch.manual_seed(0)
with torch.device(device):
    layers = [block() for _ in range(size["L"])] if layer else []
    last = [norm()] if layer == "Block" else []
    network = nn.Sequential(nn.Embedding(size["V"], width), *layers, *last, linear(width, size["V"]))
    tokens = torch.randint(size["V"], shape)
    labels = torch.randint(size["V"], shape)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def loss_of(tokens, labels):
    with torch.autocast(device, torch.bfloat16):
        logits = network(tokens)
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


if mode == "compile":
    loss_of = torch.compile(loss_of)
# The steps ahead of the timed ones compile, tune and make the optimizer's state.
for step in range(-3, steps):
    begun = time.perf_counter()
    loss = loss_of(tokens, labels)
    loss.backward()
    length = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.item()
    milliseconds = (time.perf_counter() - begun) * 1e3
    if step >= 0:
        print(json.dumps({"step": step, "loss": loss, "grad_norm": length.item(), "step_ms": milliseconds}))

"""The decoder of `examples/peers.dtl` in PyTorch, as its users write it: SDPA, fused AdamW; DDP, FSDP2 or DTensor over gloo.

    python torch_peer.py SIZE MESH FOLDER STEPS [--compile]
"""

import os

import work

given = work.arguments(__doc__)
size = work.SIZES[given.size]
processes = work.MESHES[given.mesh]
threads = max(1, len(os.sched_getaffinity(0)) // processes)
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

by_model = given.mesh in ("tp2", "tp2_sp")


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rope(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        keys = size.key_heads * size.head
        self.wq, self.wo = linear(size.width, size.width), linear(size.width, size.width)
        self.wk, self.wv = linear(size.width, keys), linear(size.width, keys)

    def forward(self, x, cosine, sine):
        # How many heads and positions there are here is known behind the product, under a plan by heads or positions.
        by_head = lambda y: y.unflatten(-1, (-1, size.head)).transpose(1, 2)
        q, k, v = (by_head(project(x)) for project in (self.wq, self.wk, self.wv))
        q, k = rope(q, cosine, sine), rope(k, cosine, sine)
        group = size.heads // size.key_heads
        if group > 1:
            # Faster here than `enable_gqa`, which is without a fused kernel on the CPU.
            k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_gate, self.w_up = linear(size.width, size.hidden), linear(size.width, size.hidden)
        self.w_down = linear(size.hidden, size.width)

    def forward(self, x):
        return self.w_down(functional.silu(self.w_gate(x)) * self.w_up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm = nn.RMSNorm(size.width, eps=work.NORM_EPSILON)
        self.mlp_norm = nn.RMSNorm(size.width, eps=work.NORM_EPSILON)
        self.attn, self.mlp = Attention(), Network()

    def forward(self, x, cosine, sine):
        x = x + self.attn(self.attn_norm(x), cosine, sine)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Block() for _ in range(size.layers))
        self.final_norm = nn.RMSNorm(size.width, eps=work.NORM_EPSILON)
        self.lm_head = linear(size.width, size.vocabulary)
        angles = torch.from_numpy(work.angles(size))
        self.register_buffer("cosine", angles.cos().float())
        self.register_buffer("sine", angles.sin().float())

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return self.lm_head(self.final_norm(x))


def load(model):
    """Fills the parameters; a linear layer holds its matrix transposed."""
    values = work.weights(given)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = [part for part in name.split(".") if part not in ("attn", "mlp", "weight")]
            value = torch.from_numpy(np.array(values[".".join(parts)]))
            parameter.copy_(value.T if value.ndim == 2 and parts[-1] != "embed" else value)


def divide_by_model(model, mesh):
    """Megatron's cut: columns then rows, the vocabulary, and with `tp2_sp` the stream's positions."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
    )

    by_position = given.mesh == "tp2_sp"
    stream = Shard(1) if by_position else Replicate()
    rows = lambda: RowwiseParallel(output_layouts=stream)
    whole = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "lm_head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    block = {f"attn.w{name}": ColwiseParallel() for name in "qkv"}
    block |= {"mlp.w_gate": ColwiseParallel(), "mlp.w_up": ColwiseParallel(), "attn.wo": rows(), "mlp.w_down": rows()}
    if by_position:
        norm = lambda: SequenceParallel(use_local_output=True)
        gather = lambda count: PrepareModuleInput(
            input_layouts=(Shard(1),) + (None,) * (count - 1),
            desired_input_layouts=(Replicate(),) + (None,) * (count - 1),
        )
        whole["final_norm"] = norm()
        block |= {"attn_norm": norm(), "mlp_norm": norm(), "attn": gather(3), "mlp": gather(1)}
    parallelize_module(model, mesh, whole)
    for layer in model.layers:
        parallelize_module(layer, mesh, block)


def clip(parameters):
    """Clips the global norm. The stock function refuses plain and distributed parameters in one list."""
    if not by_model:
        return torch.nn.utils.clip_grad_norm_(parameters, work.CLIP)
    whole = lambda norm: norm.full_tensor() if isinstance(norm, DTensor) else norm
    norms = [whole(torch.linalg.vector_norm(parameter.grad)) for parameter in parameters]
    scale = torch.clamp(work.CLIP / (torch.stack(norms).norm() + work.CLIP_EPSILON), max=1.0).item()
    local = lambda gradient: gradient.to_local() if isinstance(gradient, DTensor) else gradient
    torch._foreach_mul_([local(parameter.grad) for parameter in parameters], scale)


def optimizer(parameters):
    """Fused AdamW; one group for each pair of decay and kind of tensor."""
    groups = {}
    for parameter in parameters:
        groups.setdefault((parameter.ndim > 1, isinstance(parameter, DTensor)), []).append(parameter)
    groups = [
        {"params": members, "weight_decay": work.DECAY if decays else 0.0} for (decays, _), members in groups.items()
    ]
    return torch.optim.AdamW(groups, lr=work.RATE, betas=(work.BETA1, work.BETA2), eps=work.EPSILON, fused=True)


def train(rank):
    torch.set_num_threads(threads)
    mesh = None
    if processes > 1:
        dist.init_process_group("gloo", rank=rank, world_size=processes)
        mesh = dist.device_mesh.init_device_mesh("cpu", (processes,))
    model = Decoder()
    load(model)
    forward = model
    if given.mesh == "dp2":
        forward = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif given.mesh == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif by_model:
        divide_by_model(model, mesh)
    parameters = list(model.parameters())
    optimiser = optimizer(parameters)
    if given.compile:
        forward = torch.compile(forward)
    by_data = given.mesh in ("dp2", "fsdp2")
    data = work.batches(given)

    def loss_of(tokens, labels):
        logits = forward(tokens)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def step(index):
        tokens, labels = (torch.from_numpy(part.astype(np.int64)) for part in data[index])
        if by_data:
            tokens, labels = tokens.chunk(processes)[rank], labels.chunk(processes)[rank]
        if by_model:
            from torch.distributed.tensor.parallel import loss_parallel

            with loss_parallel():
                loss = loss_of(tokens, labels)
                loss.backward()
            loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        else:
            loss = loss_of(tokens, labels)
            loss.backward()
        clip(parameters)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        loss = loss.detach()
        if by_data:
            dist.all_reduce(loss)
            loss = loss / processes
        return loss.item()

    work.run(given.steps, step, speaks=rank == 0)
    if mesh is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    if processes == 1:
        train(0)
    else:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571", "GLOO_SOCKET_IFNAME": "lo"}
        torch.multiprocessing.spawn(train, nprocs=processes)

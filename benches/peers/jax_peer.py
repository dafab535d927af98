"""The decoder of `examples/peers.dtl` in JAX: one jitted step, sharded by annotations on a mesh of data × model.

    python jax_peer.py SIZE MESH FOLDER STEPS
"""

import os

import work

given = work.arguments(__doc__)
size = work.SIZES[given.size]
devices = work.MESHES[given.mesh]
os.environ["JAX_PLATFORMS"] = "cpu"
if devices > 1:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

by_model = given.mesh in ("tp2", "tp2_sp")
shape = (1, devices) if by_model else (devices, 1)
mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
# Where weights rest: columns or rows over `model`, and with fsdp the other dimension over `data`.
rest = "data" if given.mesh == "fsdp2" else None
COLUMNS, ROWS = PartitionSpec(rest, "model"), PartitionSpec("model", rest)
PLACES = {"wo": ROWS, "w_down": ROWS, "embed": ROWS}
STREAM = PartitionSpec("data", "model" if given.mesh == "tp2_sp" else None, None)
INNER = PartitionSpec("data", None, "model")
HEADS = PartitionSpec("data", None, "model", None)


def place(*names):
    return NamedSharding(mesh, PartitionSpec(*names))


def place_of(name):
    leaf = name.split(".")[-1]
    return place() if leaf.endswith("norm") else NamedSharding(mesh, PLACES.get(leaf, COLUMNS))


def held(x, spec):
    """`x`, kept where the plan wants it."""
    return x if devices == 1 else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + work.NORM_EPSILON) * weight


def rope(x, cosine, sine):
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)


def attention(x, weight, cosine, sine):
    count, length, _ = x.shape
    heads = lambda name, number: held((x @ weight(name)).reshape(count, length, number, size.head), HEADS)
    group = size.heads // size.key_heads
    q = rope(heads("wq", size.heads), cosine, sine).reshape(count, length, size.key_heads, group, size.head)
    k, v = rope(heads("wk", size.key_heads), cosine, sine), heads("wv", size.key_heads)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) / np.float32(np.sqrt(size.head))
    seen = np.tri(length, dtype=bool)
    chances = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd", chances, v)
    return held(mixed.reshape(count, length, size.width), INNER) @ weight("wo")


def network(x, weight):
    return held(jax.nn.silu(x @ weight("w_gate")) * (x @ weight("w_up")), INNER) @ weight("w_down")


def loss_of(weights, tokens, labels):
    angles = work.angles(size)[:, None, :]
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x = held(weights["embed"][tokens], STREAM)
    for layer in range(size.layers):
        weight = lambda name: weights[f"layers.{layer}.{name}"]
        x = held(x + attention(norm(x, weight("attn_norm")), weight, cosine, sine), STREAM)
        x = held(x + network(norm(x, weight("mlp_norm")), weight), STREAM)
    logits = held(norm(x, weights["final_norm"]) @ weights["lm_head"], INNER)
    # A comparison instead of a gather, so that a vocabulary over `model` stays where it is.
    if by_model:
        hits = labels[..., None] == jnp.arange(size.vocabulary)
        picked = jnp.sum(jnp.where(hits, logits, 0.0), axis=-1)
    else:
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def update(state, gradients):
    """AdamW behind a clip."""
    weights, firsts, seconds, count = state
    total = jnp.sqrt(sum(jnp.vdot(gradient, gradient) for gradient in gradients.values()))
    scale = jnp.minimum(1.0, work.CLIP / (total + work.CLIP_EPSILON))
    count = count + 1
    correction1, correction2 = 1 - work.BETA1**count, jnp.sqrt(1 - work.BETA2**count)
    new = {}, {}, {}
    for name, old in weights.items():
        gradient = gradients[name] * scale
        first = work.BETA1 * firsts[name] + (1 - work.BETA1) * gradient
        second = work.BETA2 * seconds[name] + (1 - work.BETA2) * gradient * gradient
        kept = old * (1 - work.RATE * work.DECAY) if work.decays(name) else old
        moved = kept - work.RATE / correction1 * first / (jnp.sqrt(second) / correction2 + work.EPSILON)
        for kind, value in zip(new, (moved, first, second)):
            kind[name] = value
    return (*new, count)


def step(state, tokens, labels):
    loss, gradients = jax.value_and_grad(loss_of)(state[0], tokens, labels)
    return update(state, gradients), loss


loaded = {name: jax.device_put(value, place_of(name)) for name, value in work.weights(given).items()}
zeros = lambda: {name: jnp.zeros_like(value) for name, value in loaded.items()}
state = (loaded, zeros(), zeros(), jax.device_put(np.float32(0), place()))
places = jax.tree.map(lambda leaf: leaf.sharding, state)
compiled = jax.jit(step, donate_argnums=0, out_shardings=(places, place()))
data = work.batches(given)


def one(index):
    global state
    tokens, labels = (jax.device_put(part.astype(np.int32), place("data")) for part in data[index])
    state, loss = compiled(state, tokens, labels)
    jax.block_until_ready(state)
    return float(loss)


work.run(given.steps, one)

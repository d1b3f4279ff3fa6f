"""PyTorch's side: the same Transformer with SDPA, FlexAttention or fla's layers; transformers."""

import importlib
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.gpu import kernels, turns
from experiments.gpu.job import Absent, Place

ATTENTION = ('sdpa', 'flex')
# Names in `fla.layers` that have the rule of one of our memories.
FLA = (
    'GatedDeltaNet', 'DeltaNet', 'KimiDeltaAttention', 'GatedLinearAttention', 'MultiScaleRetention',
    'LinearAttention',
)  # fmt: skip
SIZES = dict(layers=12, width=1024, heads=16, lanes=8, vocabulary=257)
TOY = dict(layers=2, width=16, heads=2, lanes=2, vocabulary=257)
ROW, TRACED = 20, 3  # steps without a wait between them; of which the kernels are counted
READ = 4096  # tokens that transformers reads at once


def library(name: str) -> Any:
    """A module.

    Raises:
      Absent: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f'no {name.partition(".")[0]} here: {error}') from error


def step(kind: str, name: str, segment: int, place: Place) -> dict[str, Any]:
    """A training step with AdamW: ms, tokens/s, bytes of the device, seconds of compiling."""
    torch = library('torch')
    if kind == 'fla':
        library('fla')
    torch.manual_seed(0)
    tiny = place.tiny
    sizes, segment = (TOY, 8) if tiny else (SIZES, segment)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if name == 'flex' and device == 'cpu':
        raise Absent('FlexAttention has no gradient on CPUs')
    with torch.device(device):
        model = _model(torch, kind, name, sizes, segment)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(0, sizes['vocabulary'], (sizes['lanes'], segment + 1))
    # fla's layers are Triton kernels already.
    compiled = model if kind == 'fla' or tiny else torch.compile(model)
    state = None

    def call() -> Any:
        nonlocal state
        with torch.autocast(device, torch.bfloat16):
            logits, state = compiled(tokens[:, :-1], state)
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with turns.shared(place):
        began = time.perf_counter()
        call(), call().item()  # the second has a memory
        compiling, times = time.perf_counter() - began, []
    with turns.alone(place) as free:
        for _ in range(3 if tiny else 15):
            began = time.perf_counter()
            call().item()
            times.append(time.perf_counter() - began)
        began = time.perf_counter()
        [call() for _ in range(ROW)][-1].item()
        row = (time.perf_counter() - began) / ROW
        counted = _kernels(torch, call) if device == 'cuda' else {}
    times = times[len(times) // 3 :]  # the first ones warm up
    median = statistics.median(times)
    return {
        'ms_median': 1e3 * median,
        'row_ms': 1e3 * row,
        **counted,
        'tokens_per_s': sizes['lanes'] * segment / median,
        'compile_s': compiling,
        'alone': free,
        'parameters': sum(each.numel() for each in model.parameters()),
        'device_bytes': torch.cuda.max_memory_allocated() if device == 'cuda' else 0,
        'torch': torch.__version__,
    }


def _kernels(torch: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """As `kernels.traced`, by PyTorch's profiler."""
    activity = torch.profiler.ProfilerActivity.CUDA
    try:
        with torch.profiler.profile(activities=[activity]) as profile:
            [call() for _ in range(TRACED)][-1].item()
        kind = torch.autograd.DeviceType.CUDA
        ours = [each for each in profile.events() if each.device_type == kind]
    except Exception as error:  # the times, which are dear, are kept
        return {'kernels_said': f'{type(error).__name__}: {error}'[:300]}
    return kernels.summed([(e.name, e.time_range.elapsed_us() / 1e3) for e in ours], TRACED)


def _model(torch: Any, kind: str, name: str, sizes: dict[str, int], segment: int) -> Any:
    """A language model of pre-norm blocks; it returns logits and what the next segment sees."""
    nn, width = torch.nn, sizes['width']
    make = {'torch': _attention, 'fla': _fla}[kind]

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(sizes['vocabulary'], width)
            self.attention = nn.ModuleList(
                make(torch, name, sizes, segment) for _ in range(sizes['layers'])
            )
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * sizes['layers'] + 1))
            self.dense = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
                for _ in range(sizes['layers'])
            )

        def forward(self, tokens: Any, states: Any) -> Any:
            x, new = self.embed(tokens), []
            for i, (attend, dense) in enumerate(zip(self.attention, self.dense, strict=True)):
                y, state = attend(self.norms[2 * i](x), None if states is None else states[i])
                new.append(state)
                x = x + y
                x = x + dense(self.norms[2 * i + 1](x))
            return self.norms[-1](x) @ self.embed.weight.T, new

    return Model()


def _attention(torch: Any, name: str, sizes: dict[str, int], segment: int) -> Any:
    """Attention to as many tokens before each as two segments have; keys and values are kept."""
    nn, heads, memory = torch.nn, sizes['heads'], 2 * segment
    width, total = sizes['width'], segment + memory

    def seen(b: Any, h: Any, query: Any, key: Any) -> Any:
        distance = query + memory - key
        return (distance >= 0) & (distance <= memory)

    if name == 'flex':
        flex = library('torch.nn.attention.flex_attention')
        mask = flex.create_block_mask(
            seen, None, None, segment, total, device=torch.get_default_device()
        )
    else:
        places = torch.arange(segment)[:, None], torch.arange(total)[None]
        mask = torch.zeros(segment, total, dtype=torch.bfloat16)
        mask = mask.masked_fill(~seen(None, None, *places), -torch.inf)

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any, state: Any) -> Any:
            lanes, length, _ = x.shape
            parts = self.inside(x).view(lanes, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, *new = parts.unbind()
            if state is None:
                state = [part.new_zeros(lanes, heads, memory, part.shape[-1]) for part in new]
            keys, values = (torch.cat(pair, 2) for pair in zip(state, new, strict=True))
            if name == 'flex':
                y = flex.flex_attention(query, keys, values, block_mask=mask)
            else:
                y = nn.functional.scaled_dot_product_attention(
                    query, keys, values, attn_mask=mask.to(query.dtype)
                )
            kept = [part[:, :, -memory:].detach() for part in (keys, values)]
            return self.out(y.transpose(1, 2).reshape(x.shape)), kept

    return Attention()


def _fla(torch: Any, name: str, sizes: dict[str, int], segment: int) -> Any:
    """A layer of fla; every segment begins with an empty state, which does not change its time."""
    kind = getattr(library('fla.layers'), name)
    given: dict[str, Any] = dict(
        hidden_size=sizes['width'],
        num_heads=sizes['heads'],
        head_dim=sizes['width'] // sizes['heads'],
        expand_k=1.0,
        expand_v=1.0,
    )
    if name == 'LinearAttention':
        given |= dict(feature_map='elu')
    known = inspect.signature(kind).parameters

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(**{key: value for key, value in given.items() if key in known})

        def forward(self, x: Any, state: Any) -> Any:
            y = self.layer(x)
            return (y[0] if isinstance(y, tuple) else y), None

    return Layer()


def continued(lanes: int, drawn: int, tiny: bool) -> Callable[[int], tuple[float, float, int]]:
    """A Llama of the same sizes with new parameters, by transformers.

    Returns:
      A function of a context: it reads on to there, draws some tokens, and returns seconds per token
      read, seconds per token drawn, and bytes of the cache of a lane.
    """
    torch, transformers = library('torch'), library('transformers')
    sizes, device = TOY if tiny else SIZES, 'cuda' if torch.cuda.is_available() else 'cpu'
    config = transformers.LlamaConfig(
        vocab_size=sizes['vocabulary'], hidden_size=sizes['width'],
        intermediate_size=4 * sizes['width'], num_hidden_layers=sizes['layers'],
        num_attention_heads=sizes['heads'], max_position_embeddings=1 << 21,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    cache, done, random = None, 0, np.random.default_rng(0)

    @torch.no_grad()
    def read(number: int) -> Any:
        nonlocal cache
        tokens = torch.tensor(random.integers(0, 256, (lanes, number)), device=device)
        found = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = found.past_key_values
        return found.logits.argmax(-1).tolist()  # waits

    def call(context: int) -> tuple[float, float, int]:
        nonlocal done
        number, began = context - done, time.perf_counter()
        while done < context:
            read(part := min(READ, context - done))
            done += part
        reading, times = (time.perf_counter() - began) / number, []
        for _ in range(drawn):
            began = time.perf_counter()
            read(1)
            times.append(time.perf_counter() - began)
        done += drawn
        head = sizes['width'] // sizes['heads']
        size = 2 * 2 * sizes['layers'] * sizes['heads'] * head * context
        return reading, statistics.median(times), size

    return call

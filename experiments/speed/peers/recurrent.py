"""Recurrent layers in PyTorch without kernels of GPUs: transformers', and around functions of fla.

The layers of transformers are whole. fla's are kernels of Triton, so its functions that need none
(`fla/ops/*/naive.py`) get projections, convolutions, gates and a norm here, as our layers have them.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CONVOLUTION, CHUNK = 4, 64
# Memory to the module of fla and its function.
FLA = {
    'delta_net': ('delta_rule', 'delta_rule_chunkwise'),
    'gated_delta_net': ('gated_delta_rule', 'naive_chunk_gated_delta_rule'),
    'kimi_delta': ('kda', 'naive_chunk_kda'),
    'retnet': ('retention', 'naive_retention'),
    'gla': ('gla', 'naive_recurrent_gla'),
}


def of_transformers(memory: str, sizes: Any) -> nn.Module:
    """The layer that a released model has."""
    width, heads, dim = sizes.width, sizes.heads, sizes.head_dim
    # If they are installed, it takes kernels of Triton, which need a GPU.
    sys.modules['fla'] = sys.modules['causal_conv1d'] = None  # type: ignore[assignment]

    def made(model: str, layer: str, **fields: Any) -> nn.Module:
        of_model = importlib.import_module(f'transformers.models.{model.lower()}')
        name = model.replace('_', '')
        config = getattr(of_model, f'{name}Config')(
            hidden_size=width,
            num_hidden_layers=2,
            rms_norm_eps=1e-5,
            **fields,
        )
        modelling = importlib.import_module(f'{of_model.__name__}.modeling_{model.lower()}')
        return getattr(modelling, f'{name}{layer}')(config, layer_idx=0)

    if memory == 'gated_delta_net':
        return made(
            'Qwen3_Next',
            'GatedDeltaNet',
            linear_num_key_heads=heads,
            linear_num_value_heads=heads,
            linear_key_head_dim=dim,
            linear_value_head_dim=dim,
            linear_conv_kernel_dim=CONVOLUTION,
        )
    if memory == 'kimi_delta':
        layer = made(
            'Kimi_Linear',
            'DeltaAttention',
            linear_num_heads=heads,
            linear_head_dim=dim,
            linear_conv_kernel_dim=CONVOLUTION,
        )
        for leaf in (layer.forget_gate.A_log, layer.forget_gate.dt_bias):  # made, not filled
            nn.init.zeros_(leaf)
        return layer
    if memory == 'mamba2':
        return made(
            'Mamba2',
            'Mixer',
            num_heads=heads,
            head_dim=2 * dim,
            state_size=dim,
            expand=2,
            n_groups=1,
            conv_kernel=CONVOLUTION,
            chunk_size=CHUNK,
        )
    return made(
        'MiniMax',
        'LightningAttention',
        num_attention_heads=heads,
        head_dim=dim,
        block_size=CHUNK,
    )


class Around(nn.Module):
    """What our layer has around its rule, with a function of fla as the rule."""

    def __init__(self, memory: str, sizes: Any):
        super().__init__()
        width, heads, dim = sizes.width, sizes.heads, sizes.head_dim
        module, name = FLA[memory]
        self.rule = getattr(importlib.import_module(f'fla.ops.{module}.naive'), name)
        self.memory, self.heads = memory, heads
        self.maps = nn.Linear(width, 3 * width, bias=False)
        self.convolution = None
        if memory != 'retnet':
            self.convolution = nn.Conv1d(
                3 * width,
                3 * width,
                CONVOLUTION,
                groups=3 * width,
                padding=CONVOLUTION - 1,
                bias=False,
            )
        delta = 'delta' in memory
        self.write = nn.Linear(width, heads, bias=False) if delta else None
        self.decay: nn.Module | None = None
        if memory == 'gated_delta_net':
            self.decay = nn.Linear(width, heads)
        if memory in ('kimi_delta', 'gla'):
            rank = dim if delta else 16
            self.decay = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
        self.log_rate = nn.Parameter(torch.zeros(heads)) if delta and self.decay else None
        self.shown: nn.Module | None = None
        if memory == 'kimi_delta':
            bottom, top = (nn.Linear(*shape, bias=False) for shape in ((width, dim), (dim, width)))
            self.shown = nn.Sequential(bottom, top)
        elif memory != 'delta_net':
            self.shown = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(dim, 1e-5, elementwise_affine=memory != 'retnet')
        self.out = nn.Linear(width, width, bias=False)

    def decays(self, x: torch.Tensor) -> torch.Tensor:
        """The logarithm of the decay [lanes, n, heads] or [lanes, n, heads, head_dim]."""
        logits = self.decay(x)
        if self.memory != 'gated_delta_net':
            logits = logits.unflatten(-1, (self.heads, -1))
        if self.log_rate is None:
            return nn.functional.logsigmoid(logits) / 16
        rate = self.log_rate.exp()
        return -rate.view(-1, *[1] * (logits.ndim - 3)) * nn.functional.softplus(logits)

    def read(self, x: torch.Tensor, q: Any, k: Any, v: Any) -> torch.Tensor:
        """What the rule gives, [lanes, n, heads, head_dim]."""
        if self.memory == 'gla':
            return self.rule(q, k, v, self.decays(x))[0]
        if self.memory == 'retnet':
            return self.rule(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)
        q, k = (nn.functional.normalize(part, dim=-1) for part in (q, k))
        b = self.write(x).sigmoid()
        if self.memory == 'delta_net':
            given = (part.transpose(1, 2) for part in (q, k, v, b))
            return self.rule(*given)[0].transpose(1, 2)
        named = dict(beta=b, g=self.decays(x), chunk_size=CHUNK)
        return self.rule(q=q, k=k, v=v, **named)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer."""
        qkv = self.maps(x)
        if self.convolution is not None:
            mixed = self.convolution(qkv.transpose(1, 2))[..., : x.shape[1]]
            qkv = nn.functional.silu(mixed).transpose(1, 2)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(2)
        y = self.norm(self.read(x, q, k, v)).flatten(2)
        if self.shown is not None:
            shown = self.shown(x)
            y = y * (shown.sigmoid() if self.memory == 'kimi_delta' else nn.functional.silu(shown))
        return self.out(y)


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Steps that compute all gradients of one layer; `settings`: of, memory."""
    torch.manual_seed(0)
    layer = (of_transformers if settings['of'] == 'transformers' else Around)(
        settings['memory'], sizes
    )
    layer.train()
    x, weights = torch.randn(2, sizes.lanes, sizes.segment, sizes.width)
    x.requires_grad_()
    # The layer that MiniMax has asks for what it does not read.
    more: dict[str, Any] = {}
    if settings['memory'] == 'retnet' and settings['of'] == 'transformers':
        more = dict(position_embeddings=None, attention_mask=None)

    def call() -> float:
        layer.zero_grad()
        x.grad = None
        y = layer(x, **more)
        loss = ((y[0] if isinstance(y, tuple) else y) * weights).sum()
        loss.backward()
        return loss.item()

    return call

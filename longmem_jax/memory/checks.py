"""Problems of one layer and of its sizes: the same rules for a config and for a layer by itself."""

import math
from collections.abc import Mapping
from typing import Any

from longmem_jax.attention.relative_position import POSITIONS
from longmem_jax.contract import BIASES, INITS, KERNELS, Entry, Fields
from longmem_jax.layers import norms
from longmem_jax.layers.positions import SCALINGS, rotated_width
from longmem_jax.layers.projections import JOINT_NORM
from longmem_jax.problems import above, at_least, at_most, between, of_section, one_of

# Larger ones are slips, or of a file that would take all memory: before anything is compiled there are
# lists of that many layers.
MOST = {
    'num_layers': 4096,
    'd_model': 1 << 20,
    'num_heads': 1 << 16,
    'head_dim': 1 << 20,
    'd_feed_forward': 1 << 24,
}
LONGEST = {'segment_length': 1 << 26}  # tokens
MOST_OF_A_FIELD = (1 << 31) - 1  # positions and counts are int32
# With these the arithmetic of bands neither overflows, nor is there a log of 0.
TURNS = (1e-30, 1e30)
DTYPES = ('float32', 'bfloat16', 'float64')
METHODS = ('initial_state', 'open_segment', 'close_segment')  # of all layers
CACHE_DTYPES = ('float32', 'bfloat16')  # or none, for that of activations


def size_problems(model: Any) -> list[str]:
    """Problems of the attributes of `contract.ModelSettings`.

    Args:
      model: a mapping of them, such as `config.model`.
    """
    problems = at_least(
        model, 1, 'num_layers', 'd_model', 'num_heads', 'head_dim', 'd_feed_forward'
    )
    problems += at_most(model, MOST)
    problems += one_of(model, attention_bias=BIASES, dtype=DTYPES, init=INITS, kernels=KERNELS)
    problems += one_of(model, norm=norms.KINDS)
    problems += one_of(model, cache_dtype=CACHE_DTYPES) if model['cache_dtype'] else []
    problems += rates_as_dropout(model, 'residual_dropout')
    if model['kernels'] == 'fused' and model['dtype'] == 'float64':
        problems.append(
            "kernels = 'fused': has no float64; use dtype='bfloat16' or 'float32', or 'plain'"
        )
    problems += one_of(model, head_norm=('none', *norms.KINDS, JOINT_NORM))
    problems += above(model, 0, 'norm_epsilon') + at_least(model, 0, 'init_std')
    return (
        problems
        + _key_heads(model)
        + _rotary_bands(model)
        + between(model, 0, 1, 'dropout', 'attention_dropout', ends='[)')
    )


def rates_as_dropout(model: Any, *names: str) -> list[str]:
    """Problems of rates that are -1, as `dropout`, or one of their own."""
    return [
        f'{problem}, or be -1 (as dropout)'
        for name in names
        if model[name] != -1
        for problem in between(model, 0, 1, name, ends='[)')
    ]


def layer_problems(
    entry: Entry,
    fields: Fields,
    wanted: dict[str, Any],
    model: Any,
    segment_length: int,
    *,
    where: str = '',
    where_model: str = '',
) -> list[str]:
    """Problems of the fields of one layer, for segments of a given length.

    Args:
      entry: the layer.
      fields: its sub-config.
      wanted: names and types that `fields` must have.
      model: the sizes, as for `size_problems`; names are attributes too.
      segment_length: tokens per segment.
      where, where_model: paths of both sections for the messages, with a dot at the end.
    """
    if lacking := [name for name in METHODS if not hasattr(entry.layer.module, name)]:
        words = f'{entry.layer.module.__name__} has no {", ".join(lacking)}'
        return [f'{where}{words}, by which texts are read token by token: see contract.MemoryLayer']
    problems = of_section(fields, wanted)
    whole = [name for name in wanted if not problems and type(fields[name]) is int]
    problems += at_most(fields, dict.fromkeys(whole, MOST_OF_A_FIELD))
    if not problems and 'position' in wanted:
        problems = one_of(fields, position=POSITIONS)
        if fields['position'] == 'rotary' and (rotary := _rotary(model)):
            return [where_model + problem for problem in rotary]
    if not problems and entry.layer.check is not None:
        problems = entry.layer.check(fields, model, segment_length)
    return [where + problem for problem in problems]


def kernel_problems(
    attention: Mapping[str, Entry], used: Mapping[str, Any], model: Any
) -> list[str]:
    """Problems of `kernels`.

    Args:
      attention: all attention layers, by name.
      used: sub-configs, without problems, of those that the model has.
      model: as for `size_problems`.
    """
    if model['kernels'] != 'fused':
        return []
    problems = []
    for name, fields in used.items():
        entry = attention[name]
        if entry.layer.fused is None:
            able = ', '.join(sorted(n for n, e in attention.items() if e.layer.fused is not None))
            problems.append(
                f"kernels = 'fused': {name!r} has no fused kernel, those that have are {able}; use "
                "'plain'"
            )
        elif problem := entry.layer.fused(fields):
            problems.append(f"kernels = 'fused': {name}.{problem}; use 'plain'")
    return problems


def _rotary(model: Any) -> list[str]:
    """Problems of rotary positions."""
    problems = above(model, 1, 'rotary_base') + _rotary_scaling(model)
    share, head_dim = model['rotary_share'], model['head_dim']
    if not 0 < share <= 1:
        return [*problems, *between(model, 0, 1, 'rotary_share', ends='(]')]
    width = rotated_width(head_dim, share)
    if (width % 2 or not width) and share == 1:
        problems.append(f'head_dim = {head_dim}: rotary needs an even number')
    elif width % 2 or not width:
        problems.append(
            f'rotary_share = {share}: of head_dim = {head_dim} it rotates {width} dimensions; an even '
            'number from 2 is needed'
        )
    return problems


def _rotary_scaling(model: Any) -> list[str]:
    """Problems of the scaling of rotary positions."""
    problems = one_of(model, rotary_scaling=SCALINGS) + at_least(model, 1, 'rotary_factor')
    problems += above(model, 0, 'rotary_gain')
    if model['rotary_scaling'] in ('llama3', 'yarn'):
        problems += at_least(model, 1, 'rotary_original')
    if model['rotary_scaling'] == 'longrope':
        factors = model['rotary_factors']
        pairs = rotated_width(model['head_dim'], model['rotary_share']) // 2
        right = all(type(each) in (int, float) and 0 < each < math.inf for each in factors)
        if len(factors) != pairs or not right:
            problems.append(
                f'rotary_factors = {tuple(factors)}: one number above 0 for each of the {pairs} rotated '
                'pairs of a head is needed'
            )
    return problems


def _rotary_bands(model: Any) -> list[str]:
    """Problems of the only size that is a tuple, whether it is read or not."""
    given, (least, most) = model['rotary_bands'], TURNS
    match given:
        case [int() | float() as low, int() | float() as high] if least <= low < high <= most:
            if not isinstance(low, bool) and not isinstance(high, bool):
                return []
    needed = f'a tuple of two rising numbers from {least} to {most} is needed, such as (1.0, 4.0)'
    return [f'rotary_bands = {given!r}: {needed}']


def _key_heads(model: Any) -> list[str]:
    """Problems of the heads of keys and values."""
    heads = model['num_kv_heads']
    if heads < 0 or (heads and model['num_heads'] % heads):
        return [
            f'num_kv_heads = {heads}: must be 0, as many as heads, or a divisor of '
            f'num_heads = {model["num_heads"]}'
        ]
    return []

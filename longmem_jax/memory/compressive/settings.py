"""The settings of a Compressive Transformer: their rules, and how they follow from a model's sizes."""

import math
from typing import Any

from longmem_jax.attention import fused_rules
from longmem_jax.attention.near_positions import shared_table
from longmem_jax.attention.relative_position import RelativeBiases
from longmem_jax.contract import STARTS, Fields, Recipe, Scale
from longmem_jax.memory.compressive.compression import COMPRESSIONS, RECONSTRUCTIONS
from longmem_jax.problems import at_least, one_of

READINGS = ('segment', 'sliding')


def fused(fields: Fields) -> str:
    """What keeps the layer from the fused kernel, see `contract.LayerType.fused`."""
    if fields['reading'] != 'segment':
        return f'reading = {fields["reading"]!r} has scores by the age of slots, which it does not have'
    return fused_rules.position_problem(fields)


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that `rate` divides both lengths, and that positions and loss suit the way of reading."""
    rate = fields['rate']
    problems = one_of(
        fields,
        compression=COMPRESSIONS,
        reading=READINGS,
        reconstruction=RECONSTRUCTIONS,
        start=STARTS,
    )
    problems += at_least(fields, 1, 'memory_length', 'compressed_length')
    problems += at_least(fields, 2, 'rate')
    if problems:
        return problems
    for name, length in (('segment', segment_length), ('memory', fields['memory_length'])):
        if length % rate:
            problems.append(f'rate = {rate}: must divide the {name} length {length}')
    learned = fields['compression'] == 'convolution'
    if fields['reading'] == 'sliding':
        if fields['compression'] not in ('mean', 'max') or fields['reconstruction'] != 'none':
            problems.append(
                f"reading = 'sliding': needs compression 'mean' or 'max' and reconstruction 'none', not "
                f'{fields["compression"]!r} and {fields["reconstruction"]!r}'
            )
        if fields['position'] != 'none':
            problems.append(
                f"position = {fields['position']!r}: 'sliding' has its own table; set position = 'none'"
            )
    elif fields['start'] == 'zeros':
        problems.append("start = 'zeros': is for reading = 'sliding' only; use 'empty'")
    elif learned and fields['reconstruction'] == 'none':
        problems.append(
            "reconstruction = 'none': a convolution learns from this loss only; use 'attention' or "
            "'autoencoding', or another compression"
        )
    if not learned and fields['reconstruction'] != 'none':
        problems.append(
            f'reconstruction = {fields["reconstruction"]!r}: compression = '
            f"{fields['compression']!r} has no parameters to learn; use 'none'"
        )
    return problems


def shared(fields: Fields) -> Any:
    """`LayerType.shared`: the position table of 'sliding', or the biases of Transformer-XL."""
    if fields['reading'] == 'sliding':
        num_distances = fields['memory_length'] + fields['compressed_length'] + 1
        return shared_table({'num_distances': num_distances}, 'num_distances')
    return RelativeBiases if fields['position'] == 'transformer_xl' else None


def _lengths(scale: Scale) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A rate that divides all segment lengths, memories of half the reach each, and notes."""
    common = math.gcd(scale.segment, scale.evaluated)
    rate = next((rate for rate in (4, 3, 2, 5, 6, 7) if common % rate == 0), max(common, 2))
    half = max(scale.reach // 2 // rate, 1) * rate
    notes: tuple[str, ...] = ()
    if rate != 4:
        lengths = sorted({scale.segment, scale.evaluated})
        segments = ' and '.join(f'segment_length = {length}' for length in lengths)
        notes = (f'rate = {rate}: 4 does not divide {segments}',)
    return dict(memory_length=half, compressed_length=half, rate=rate), notes


def recipe(scale: Scale) -> Recipe:
    """The paper's learned convolution with attention reconstruction."""
    fields, notes = _lengths(scale)
    return Recipe({'compressive': fields}, loss_weights={'compression': 1.0}, notes=notes)


def sliding_recipe(scale: Scale) -> Recipe:
    """The baseline of the Expire-Span paper: half of the reach uncompressed, half of it pooled."""
    fields, notes = _lengths(scale)
    fields |= dict(
        compressed_length=fields['memory_length'] // fields['rate'],
        compression='mean',
        reading='sliding',
        position='none',
        reconstruction='none',
    )
    return Recipe({'compressive': fields}, notes=notes)

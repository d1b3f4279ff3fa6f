"""The entry of the infinity-former: rules of its settings, and how they follow from sizes of a model."""

import math
from typing import Any

from longmem_jax.attention import fused_rules
from longmem_jax.attention.relative_position import shared_biases
from longmem_jax.contract import Entry, Fields, Graft, LayerType, Recipe, Recipes, Scale
from longmem_jax.memory.infinity_former import continuous
from longmem_jax.memory.infinity_former.layer import InfinityFormer
from longmem_jax.memory.infinity_former.view import held, read, series
from longmem_jax.problems import above, at_least, between, one_of
from longmem_jax.views import View

THRESHOLDS = ('fill', 'clear')
KEPT = 0.3  # of a vector's share of the memory, in recipes, after as many tokens as it should last
FORGOTTEN = 0.05  # less than this share of it cannot be read


def spacing(length: int, num_samples: int, tau: float) -> float:
    """Largest distance between neighbouring positions of an update."""
    return max(tau / num_samples, (1 - tau) / length)


def _check_biases(fields: Fields) -> list[str]:
    """Problems of the biases of Eqs. 9-10 and their first values."""
    places, problems = tuple(fields['first_places']), at_least(fields, 0, 'first_width')
    if problems:
        return problems
    if places and (len(places) != 2 or not all(0 < place < 1 for place in places)):
        return [
            f'first_places = {places}: must be () or two places between 0 and 1, such as (.2, .8)'
        ]
    if not fields['biases'] and (places or fields['first_width']):
        return [
            'biases = False: first_places and first_width set the first biases; set biases = True, or '
            'leave them at () and 0.0'
        ]
    return []


def check(fields: Fields, model: Any, segment_length: int) -> list[str]:
    """Checks that basis functions are wide enough for the samples, and that one write per segment
    keeps up."""
    widths = tuple(fields['widths'])
    write_length = fields['write_length'] or segment_length
    problems = at_least(fields, 1, 'num_basis', 'num_samples', 'num_bins')
    problems += one_of(
        fields,
        sticky=continuous.STICKY,
        density=continuous.DENSITIES,
        kl=('none', *continuous.KL_KINDS),
        threshold_kind=THRESHOLDS,
    )
    problems += between(fields, 0, 1, 'tau', ends='()')
    problems += above(fields, 0, 'ridge', 'sigma_sq_min', 'sigma_0')
    if fields['density'] == 'parabola' and fields['kl'] not in ('none', 'true'):
        problems.append(
            f"kl = {fields['kl']!r}: a formula for Gaussian densities; with density = 'parabola' use "
            "'true' or 'none'"
        )
    problems += _check_biases(fields)
    if not widths or min(widths) <= 0:
        problems.append(f'widths = {widths}: must be numbers above 0')
    elif fields['num_basis'] % len(widths) or fields['num_basis'] // len(widths) < 2:
        problems.append(
            f'num_basis = {fields["num_basis"]}: must be a multiple of the {len(widths)} widths, with '
            'at least 2 centres'
        )
    if problems:
        return problems
    step = spacing(write_length, fields['num_samples'], fields['tau'])
    if min(widths) < step:
        wide = tuple(max(width, math.ceil(1e4 * step) / 1e4) for width in widths)
        problems.append(
            f'widths = {widths}: the narrowest is below {step:.4f}, the distance between fitted '
            'vectors, max(tau / num_samples, (1 - tau) / write_length); a basis function with no '
            f'vector near it grows without bound. Use widths = {wide} or wider'
        )
    if fields['num_samples'] > 8 * fields['num_basis']:
        problems.append(
            f'num_samples = {fields["num_samples"]}: more than 8 per basis function add nothing; '
            f'use at most {8 * fields["num_basis"]}'
        )
    if segment_length > write_length:
        problems.append(
            f'write_length = {write_length}: must be at least the segment length '
            f'{segment_length}, because there is one write per segment'
        )
    threshold = fields['memory_threshold']
    if threshold and threshold < write_length:
        problems.append(
            f'memory_threshold = {threshold}: must be 0 (none) or at least write_length = {write_length}'
        )
    return problems


def reach(fields: Fields, segment_length: int) -> int:
    """Tokens after which a vector has less than `FORGOTTEN` of the room that it got at its write.

    Every write leaves a share `tau` of it. Of passkeys, 84 % were answered where .19 of it was left,
    and none where .03 was.
    """
    writes = math.log(FORGOTTEN) / math.log(fields['tau'])
    tokens = int(writes * (fields['write_length'] or segment_length))
    return max(tokens, fields['memory_length'])


def recipe(scale: Scale) -> Recipe:
    """A short-term memory of one segment, and a continuous one of `scale.memories` tokens.

    Every write leaves `tau` of the room to older vectors, so `tau` follows from the distance that they
    should last; .5, as in the paper, is for memories of a few segments. No sticky memories: where the
    densities are still flat they are even sampling. Functions are wider than the distance of the
    samples, and there are enough of them to cover [0, 1].

    The continuous memory learns at three times the rate of the rest, without weight decay: its gate and
    its values select what is worth keeping.
    """
    segment = scale.segment
    tau = KEPT ** (segment / max(scale.memories, 2 * segment))
    shortest = min(segment, scale.evaluated)
    narrowest = max(scale.widths[0], 1.5 * spacing(shortest, scale.samples, tau))
    widths = (narrowest, max(scale.widths[-1], 2 * narrowest))
    per_width = max(scale.basis / len(widths), 1 / (1.5 * narrowest))
    fields = dict(
        memory_length=segment,
        num_basis=len(widths) * math.ceil(per_width),
        widths=widths,
        num_samples=scale.samples,
        tau=tau,
        sticky='none',
    )
    groups = (('attention/memory/', 3.0, False),)
    return Recipe({'infinity_former': fields}, loss_weights={'kl': 1e-6}, groups=groups)


ENTRY = Entry(
    name='infinity_former',
    layer=LayerType(
        InfinityFormer,
        check=check,
        shared=shared_biases,
        losses=lambda fields: () if fields['kl'] == 'none' else ('kl',),
        reach=reach,
        fused=fused_rules.position_problem,
    ),
    recipe=Recipes({'infinity_former': recipe}),
    graft=Graft(
        lambda scale, position: dict(position=position, memory_length=0),
        exact=True,
        how='the result of reading is added to the attention; it is zero while nothing is stored',
        positions='positions in a signal that is contracted, as in the paper',
    ),
    view=View(held, read, series, lengths={'memory_length': '', 'num_basis': '+ functions '}),
    toy=dict(
        memory_length=3,
        position='rotary',
        num_basis=8,
        widths=(0.15, 0.3),
        num_samples=8,
        write_length=5,
        sticky='sampled',
        num_bins=16,
    ),
    variants=dict(
        no_short_memory=dict(
            memory_length=0,
            sticky='quantile',
            density='parabola',
            biases=True,
            first_width=0.3,
            first_places=(0.2, 0.8),
        ),
        clearing=dict(
            memory_threshold=10,
            threshold_kind='clear',
            sticky='none',
            kl='none',
            normalize_written=False,
        ),
    ),
)

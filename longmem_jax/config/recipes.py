"""Puts any memory into any configuration: its layers, losses, parameter groups, and lengths.

Every memory brings a recipe in its own file (`Entry.recipes`), which derives its fields from the sizes
of the model and the segment. A config says of a memory only what its paper has otherwise.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from longmem_jax.contract import Recipe, Scale
from longmem_jax.errors import UsageError, unknown
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.kinds import KINDS


@dataclasses.dataclass
class Given:
    """What a config says of one memory, beyond its recipe.

    Attributes:
      recipe: name of another recipe to begin with; '' = the one of the memory's name.
      fields: of its sub-config; a field that several layers of the recipe have is set in all.
      attention, feed_forward: names per layer; () = as in the recipe.
      evaluate: fields that differ in evaluation, such as longer memories.
      loss_weights, groups: in place of the recipe's; None = the recipe's.
    """

    recipe: str = ''
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    attention: tuple[str, ...] = ()
    feed_forward: tuple[str, ...] = ()
    evaluate: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_weights: dict[str, float] | None = None
    groups: tuple[tuple, ...] | None = None


def given(
    recipe: str = '',
    *,
    attention: tuple[str, ...] = (),
    feed_forward: tuple[str, ...] = (),
    evaluate: dict[str, Any] | None = None,
    loss_weights: dict[str, float] | None = None,
    groups: tuple[tuple, ...] | None = None,
    **fields: Any,
) -> Given:
    """`Given` with its fields as keywords: `given(memory_length=512)`."""
    return Given(recipe, fields, attention, feed_forward, evaluate or {}, loss_weights, groups)


def recipes() -> dict[str, Callable[[Scale], Recipe]]:
    """Every name that `:memory=` may have, to its recipe."""
    found = {}
    for owner in (*LAYERS.values(), *KINDS.values()):
        found |= owner.recipes
    return found


def scale_of(config: Any, **told: Any) -> Scale:
    """The sizes that recipes derive fields from; all follow from the segment unless told.

    Args:
      config: the whole configuration.
      **told: attributes of `Scale` that are not to follow.
    """
    model, segment = config.model, config.train.segment_length
    reach = told.get('reach', max(2 * segment, 128))
    basis = max(reach // 4, 2) * 2
    samples = min(segment, 8 * basis)
    long = segment >= 256
    # A basis function narrower than the vectors it is fitted to lie apart would grow without bound.
    narrowest = 1.28 * 0.5 / min(samples, segment)
    sizes = dict(
        segment=segment,
        evaluated=config.evaluate.segment_length,
        layers=model.num_layers,
        d_model=model.d_model,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        reach=reach,
        memories=32 * reach,
        basis=basis,
        samples=samples,
        widths=(max(0.01 if long else 0.02, narrowest), max(0.05, 2 * narrowest)),
        slots=max(segment // 4, 16),
        tokens=20 if long else 8,
        keys=128 if long else 32,
    )
    return Scale(**sizes | told)


def section(name: str, **changes: Any) -> dict[str, Any]:
    """The sub-config of layer `name`: its paper's values, with changes.

    Raises:
      UsageError: a field that the layer has not, with the nearest.
    """
    defaults = LAYERS[name].defaults()
    for field in changes:
        if field not in defaults:
            raise UsageError(unknown(f'a field of {name}', field, sorted(defaults)))
    return defaults | changes


def use(config: Any, name: str, changes: Given | Recipe | None = None, **told: Any) -> None:
    """Puts a memory into the model, in place of the one that is there.

    Its layers, sub-configs, auxiliary losses, parameter groups and evaluation lengths go in; all of
    those of the former memory go out. What could not be as in the paper stands in `config.notes`.

    Args:
      config: the whole configuration; changed in place.
      name: one of `recipes()`.
      changes: what the config says of this memory, or a recipe of its own.
      **told: sizes, see `scale_of`.

    Raises:
      UsageError: another name, with the nearest; a field that the memory has not.
    """
    known, changes = recipes(), changes or Given()
    if name not in known:
        raise UsageError(unknown('memory', name, sorted(known)))
    if isinstance(changes, Recipe):
        recipe, changes = changes, Given()
    else:
        recipe = known[changes.recipe or name](scale_of(config, **told))
    model = config.model
    for other in {*LAYERS, *KINDS} - {'dense', 'seq2seq'}:
        if other in model:
            del model[other]
    if model.kind == 'seq2seq':  # the memory is the decoder's; the encoder and positions stay
        if 'kind' in recipe.model:
            raise UsageError(
                f'memory={name}: this is a whole model, not the attention of a decoder; use a memory '
                'that is an attention layer, such as memory=memsizer.'
            )
    else:
        model.kind, model.position = 'language_model', recipe.model.get('position', 'none')
    for field, value in recipe.model.items():
        if field != 'position':
            model[field] = value
    own = next(iter(recipe.sections))
    model.attention = changes.attention or recipe.attention or (own,) * model.num_layers
    model.num_layers = len(model.attention)
    dense = ('dense',) * model.num_layers
    model.feed_forward = changes.feed_forward or recipe.feed_forward or dense
    used = {*model.attention, *model.feed_forward, model.kind}
    sections = {
        part: section(part, **fields) if part in LAYERS else fields
        for part, fields in recipe.sections.items()
    }
    has = sorted({field for fields in sections.values() for field in fields})
    for field in changes.fields:
        if field not in has:
            raise UsageError(unknown(f'a field of {own}', field, has))
    for part, fields in sections.items():
        if part in used:
            model[part] = fields | {k: v for k, v in changes.fields.items() if k in fields}
    config.evaluate.model = {own: changes.evaluate} if changes.evaluate else {}
    chosen = changes.loss_weights
    kept = {
        loss: weight
        for loss, weight in config.train.loss_weights.items()
        if loss in KINDS[model.kind].losses
    }
    config.train.loss_weights = kept | (recipe.loss_weights if chosen is None else chosen)
    config.optimizer.groups = recipe.groups if changes.groups is None else changes.groups
    config.notes = tuple(f'{name}: {note}' for note in recipe.notes)

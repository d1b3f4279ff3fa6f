"""Puts any memory into any configuration: its layers, losses, parameter groups and lengths.

Every memory has a recipe in its own file (`Entry.recipe`), which derives its fields from the sizes
of the model and the segment. A config lists only the fields that its experiment sets differently.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from longmem_jax.config import hybrids
from longmem_jax.config.hybrids import is_pattern, names_of
from longmem_jax.contract import Group, Recipe, Scale
from longmem_jax.errors import UsageError, no_field, unknown, visible
from longmem_jax.memory.registry import ATTENTION, LAYERS, used
from longmem_jax.models.kinds import KINDS


@dataclasses.dataclass
class Given:
    """What a config changes in the recipe of a memory.

    Attributes:
      recipe: name of another recipe to start from; '' = the recipe of the memory's name.
      fields: of its sub-config; a field that several layers of the recipe have is set in all.
      attention, feed_forward: names per layer; () = as in the recipe.
      evaluate: fields with other values in evaluation, such as longer memories.
      loss_weights, groups: replace the recipe's; None = the recipe's.
      notes: added to the recipe's: what a reader of the config should know.
    """

    recipe: str = ''
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    attention: tuple[str, ...] = ()
    feed_forward: tuple[str, ...] = ()
    evaluate: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_weights: dict[str, float] | None = None
    groups: tuple[Group, ...] | None = None
    notes: tuple[str, ...] = ()


def given(
    recipe: str = '',
    *,
    attention: tuple[str, ...] = (),
    feed_forward: tuple[str, ...] = (),
    evaluate: dict[str, Any] | None = None,
    loss_weights: dict[str, float] | None = None,
    groups: tuple[Group, ...] | None = None,
    notes: tuple[str, ...] = (),
    **fields: Any,
) -> Given:
    """A `Given` whose `fields` are keywords: `given(memory_length=512)`."""
    evaluate = evaluate or {}
    return Given(recipe, fields, attention, feed_forward, evaluate, loss_weights, groups, notes)


def recipes() -> dict[str, Callable[[Scale], Recipe]]:
    """Every name that `:memory=` accepts, with its recipe."""
    by_name: dict[str, Callable[[Scale], Recipe]] = {}
    for entry in LAYERS.values():
        for name, make in entry.recipe.by_name.items():
            by_name.setdefault(name, make)  # of two of a name the first, which is ours
    return {name: functools.partial(_made, name, make) for name, make in by_name.items()}


def _made(name: str, make: Callable[[Scale], Recipe], scale: Scale) -> Recipe:
    """A recipe for models of this size; raises `UsageError` if its function gives something else."""
    recipe = make(scale)
    if not isinstance(recipe, Recipe) or not recipe.sections:
        raise UsageError(
            f'memory = {name!r}: its recipe gives {visible(repr(recipe), 60)}; it must give a contract.'
            f"Recipe with the fields of at least one layer, such as Recipe({{'{name}': dict(...)}})"
        )
    return recipe


def scale_of(config: Any, **sizes: Any) -> Scale:
    """The sizes that recipes derive fields from.

    They follow from the segment length unless given.
    """
    model, segment = config.model, config.train.segment_length
    reach = sizes.get('reach', max(2 * segment, 128))
    basis = max(reach // 4, 2) * 2
    samples = min(segment, 8 * basis)
    long = segment >= 256
    # A basis function narrower than the distance of the vectors it is fitted to grows without bound.
    narrowest = 1.28 * 0.5 / min(samples, segment)
    derived = dict(
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
    return Scale(**derived | sizes)


def section(name: str, **changes: Any) -> dict[str, Any]:
    """The sub-config of layer `name`: its paper's values, with changes.

    Raises:
      UsageError: a field that the layer does not have, with the nearest.
    """
    defaults = LAYERS[name].defaults()
    for field in changes:
        if field not in defaults:
            raise UsageError(no_field(name, field, defaults))
    return defaults | changes


def changes_of(memories: Mapping[str, Any], name: str) -> Any:
    """What `use` takes as `changes`, from the changes of a config by name of the memory."""
    if is_pattern(name):
        return {part: memories[part] for part in set(names_of(name)) & set(memories)}
    return memories.get(name)


def use(
    config: Any,
    name: str,
    changes: Given | Recipe | Mapping[str, Given | Recipe] | None = None,
    **sizes: Any,
) -> None:
    """Replaces the memory of the model.

    Removes the present memory's sub-configs, auxiliary losses, parameter groups and evaluation
    lengths, and sets those of the new one. Deviations from its paper are listed in `config.notes`.

    Args:
      name: one of `recipes()`, or any name for `changes` that name their recipe; or a pattern of names
        and of attention layers, see `hybrids`.
      changes: changes to the recipe, or another recipe to use instead; of a pattern, by name.

    Raises:
      UsageError: an unknown name, with the nearest; a field that the memory does not have; a pattern
        whose parts want different values of a setting.
    """
    scale, model = scale_of(config, **sizes), config.model
    if is_pattern(name):
        names, by_part = names_of(name), changes if isinstance(changes, Mapping) else {}
        changed = {part: _changed(part, by_part.get(part), scale) for part in dict.fromkeys(names)}
        found = {part: recipe for part, (recipe, _) in changed.items()}
        recipe = hybrids.join(names, found, model.num_layers)
        evaluate = {k: v for _, fields in changed.values() for k, v in fields.items()}
    else:
        assert not isinstance(changes, Mapping), 'changes by name are those of a pattern'
        recipe, evaluate = _changed(name, changes, scale)
    _set_model(model, recipe)
    config.evaluate.model = evaluate
    kind_weights = {
        loss: weight
        for loss, weight in config.train.loss_weights.items()
        if loss in KINDS[model.kind].losses
    }
    config.train.loss_weights = kind_weights | recipe.loss_weights
    config.optimizer.groups = recipe.groups
    config.notes = tuple(note for note in recipe.notes if holds(note, config))


def _changed(
    name: str, changes: Given | Recipe | None, scale: Scale
) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """A recipe with the changes of a config, all stacks in full; and fields by layer in evaluation."""
    known, changes = recipes(), changes or Given()
    if isinstance(changes, Recipe):
        recipe, changes = changes, Given()
    else:
        source = changes.recipe or name
        if source in known:
            recipe = known[source](scale)
        elif source in ATTENTION:
            recipe = Recipe({source: {}})
        else:
            raise UsageError(unknown('memory', source, sorted(known)))
    sections = {layer: section(layer, **fields) for layer, fields in recipe.sections.items()}
    main, allowed = next(iter(sections)), {field for part in sections.values() for field in part}
    for field in changes.fields:
        if field not in allowed:
            raise UsageError(no_field(main, field, allowed))
    for fields in sections.values():
        fields.update({k: v for k, v in changes.fields.items() if k in fields})
    attention = changes.attention or recipe.attention or (main,) * scale.layers
    depth, around = len(attention), recipe.around
    if changes.attention and around:  # another depth: around all of it, as in the recipe
        around = (around[0],) * depth
    weights, groups = changes.loss_weights, changes.groups
    changed = Recipe(
        sections,
        attention,
        changes.feed_forward or recipe.feed_forward or ('dense',) * depth,
        around,
        recipe.model,
        recipe.loss_weights if weights is None else weights,
        recipe.groups if groups is None else groups,
        tuple(f'{name}: {note}' for note in (*recipe.notes, *changes.notes)),
    )
    return changed, {main: changes.evaluate} if changes.evaluate else {}


def holds(note: str, config: Any) -> bool:
    """Whether a section has each `NAME = VALUE` of a note: "infini: position = 't5': ..."."""
    model = config.model
    layers = [fields for fields in model.values() if isinstance(fields, ml_collections.ConfigDict)]
    sections = [config.train, config.evaluate, model, *layers]
    named = re.findall(r"(\w+) = ('\w*'|[\w.]+)", note)
    return all(any(repr(fields.get(name)) == value for fields in sections) for name, value in named)


def _set_model(model: Any, recipe: Recipe) -> None:
    """Sets the stacks of layers, their sub-configs and other fields, instead of the present memory's."""
    keeps = model.kind in KINDS and KINDS[model.kind].keeps
    for other in {*LAYERS, *KINDS} - {'dense', *([model.kind] if keeps else [])}:
        if other in model:
            del model[other]
    if not keeps:
        model.kind, model.position = 'language_model', recipe.model.get('position', 'none')
    for field, value in recipe.model.items():
        if field != 'position':
            model[field] = value
    model.num_layers = len(recipe.attention)
    model.attention, model.feed_forward = recipe.attention, recipe.feed_forward
    model.beside, model.around = (), recipe.around
    for layer, fields in recipe.sections.items():
        if layer in used(model):
            model[layer] = fields

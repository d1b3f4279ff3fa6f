"""Memories in pretrained decoders: the model of a host, with a memory in all layers or in some.

A memory's own file says how it takes the place of a layer (`Entry.graft`): which fields keep the host's
positions and scores, and whether a model with an empty memory computes exactly what the host does. What
the host has is then loaded by `hosts.load`; everything else is new.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from longmem_jax.config.base import base
from longmem_jax.config.hybrids import is_pattern
from longmem_jax.config.recipes import Given, recipes, scale_of, section
from longmem_jax.contract import Graft, Recipe
from longmem_jax.data import model_files
from longmem_jax.errors import UsageError, unknown
from longmem_jax.hosts import model_fields
from longmem_jax.memory.registry import LAYERS, used
from longmem_jax.models.stack import context_of, has_table

# GPT-2 small, for a model of its shape that is trained from the start.
GPT2_SMALL = dict(
    model_type='gpt2', vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12
)
# Tokens that a host without a memory keeps in training, unless more are asked for.
TRAINING_CACHE = 2048
# Layers that hosts have by themselves; others are memories, or attention that `graft` has changed.
OWN_LAYERS = {'attention': {'full', 'sliding'}, 'feed_forward': {'dense', 'experts'}}
# Paths of the parameters that a host has; low-rank parts and memories are not among them.
HOST = (
    r'^(embedding|final_norm)/|^block_\d+/(attention|feed_forward)_(output_)?norm/'
    r'|^block_\d+/attention/projections/\w+/(kernel|bias|norm)'
    r'|^block_\d+/feed_forward/(up|gate|down|every)/|^block_\d+/feed_forward/(router|expert_|every_)'
)


@functools.cache
def grafts() -> Mapping[str, Graft]:
    """Names for `graft` to how they take the place of a layer."""
    named, scale = {}, scale_of(base())
    for name, recipe in sorted(recipes().items()):
        entry = LAYERS[_main(recipe(scale))]
        if entry.graft is None:
            continue
        if not entry.graft.recipes or name in entry.graft.recipes:
            named[name] = entry.graft
    return named


def table() -> str:
    """The memories that can be put into a host, as a Markdown table."""
    rows = [
        f'| `{name}` | {"yes" if graft.exact else "no"} | {graft.how} | {graft.positions} |'
        for name, graft in grafts().items()
    ]
    head = '| memory | empty = the host | how, or what is kept | positions of what is remembered |'
    return '\n'.join((head, '|---|---|---|---|', *rows)) + '\n'


def use_host(
    config: Any,
    source: str,
    context: int = 0,
    shape: Mapping[str, Any] = GPT2_SMALL,
    graft: str = '',
) -> int:
    """Makes the model, the tokenizer and the first parameters of a configuration a host's.

    Args:
      source: a folder, a GGUF file or a name on the hub, see `hosts.find`; '' = `shape`, with random
        parameters.
      shape: attributes of a `config.json`.
      graft: file of what is added to the host, see `graft_file`; '' = nothing.

    Returns:
      Tokens per segment that the memory was trained with; 0 = there is none.

    Raises:
      UsageError: no such model, or one that is no decoder.
    """
    dtype, given, segment = config.model.dtype, shape, 0
    if not source and graft:
        raise UsageError(f'graft={graft}: path=FOLDER is needed too, the host that it belongs to.')
    if not source:
        config.model = model_fields.model_of(shape, 'shape', context)
    else:
        from longmem_jax.hosts import graft_file, hosts  # import readers of tensors

        source = f'{source}{graft_file.AND}{graft}' if graft else source
        host = hosts.find(source, context)
        if host.plain.kind != 'language_model':
            raise UsageError(f'{source}: is not a decoder; a memory can be put into decoders only.')
        config.model, given, segment = host.model, host.attributes, host.segment_length
        config.train.start_from = source
        use_tokenizer(config, host.folder)
    config.model.dtype = dtype
    config.model.init_std = float(given.get('initializer_range', 0.02))  # of what is new
    config.train.loss_weights, config.evaluate.model = {}, {}
    return segment


def use_tokenizer(config: Any, folder: Path) -> None:
    """Makes the tokenizer of a configuration that of a host's folder or file, where there is one."""
    kinds = ('tokenizer.json', 'vocab.json', 'vocab.txt'), ('tokenizer.model',)
    for kind, names in zip(('tokenizers', 'sentencepiece'), kinds, strict=True):
        if any(model_files.has(folder, name) for name in names):
            config.data.tokenizer = dict(kind=kind, path=str(folder), size=0)
            return


def graft(
    config: Any,
    name: str,
    *,
    layers: Sequence[int] = (),
    rotary: bool = False,
    beside: bool = False,
    changes: Given | None = None,
    **sizes: Any,
) -> None:
    """Puts a memory into the host that is the model of a configuration; see `use_host`.

    Layers without it stay the host's where its positions are rotary. They see their segment, one before
    it, and the first tokens of the document (`Graft.window`), as layers with `memorizing` do: without
    those a host breaks. Around a memory with tokens of its own they see as many tokens as a segment has
    with those. Positions in embeddings begin at 0 in every segment, and then those layers see the
    segment alone.

    Args:
      name: one of `grafts()`.
      layers: where, from 0; () = where the memory's recipe has it, usually everywhere.
      rotary: rotary positions replace those in the embeddings.
      beside: the memory stands beside the attention of the host, through a gate that begins at 0.
      changes: to the recipe of the memory; its layers are not used.
      **sizes: see `recipes.scale_of`.

    Raises:
      UsageError: an unknown name, a memory that does not fit into this host, or a host that was
        exported with a memory there.
    """
    model, changes = config.model, changes or Given()
    known = grafts()
    if is_pattern(name):
        raise UsageError(f'memory={name}: a host gets one memory; layers=0-5 says in which layers.')
    if (changes.recipe or name) not in known:
        others = 'the others cannot be put into a host, which needs a graft in their Entry'
        raise UsageError(f'{unknown("memory", name, sorted(known))}; {others}.')
    recipe = recipes()[changes.recipe or name](scale_of(config, **sizes))
    main = _main(recipe)
    stands = LAYERS[main].place
    if beside and stands != 'attention':
        raise UsageError(f'memory={name},beside: is for attention layers, and {main} is none.')
    stands = 'beside' if beside else stands
    recurrent = _recurrent(config)
    place = 'feed_forward' if stands == 'feed_forward' else 'attention'
    _require_plain(model, name, place, recurrent)
    replaced, longest = rotary and model.position != 'none', context_of(model)
    if replaced:
        _replace_positions(model)
    how, position = known[changes.recipe or name], _position(model)
    own = how.fields(scale_of(config, **dict(context=longest) | sizes), position)
    chosen = tuple(layers) or _chosen(model, recipe, main, stands, recurrent)
    _require_fitting(model, name, main, stands, chosen, recurrent)
    fields = section(main, **recipe.sections[main] | own | changes.fields)
    if stands != 'feed_forward':
        replaces = chosen if stands == 'attention' else ()
        extra = sum(LAYERS[main].layer.extra(fields))
        _keep_others(config, replaces, main, extra)
        if beside and main in model.attention:
            raise UsageError(f'memory={name},beside: the host has this attention by itself.')
    stack = tuple(model[stands]) or ('',) * model.num_layers
    model[stands] = tuple(main if i in chosen else layer for i, layer in enumerate(stack))
    for other in set(LAYERS) & set(model) - {*used(model)}:
        del model[other]
    model[main] = fields
    weights = recipe.loss_weights if changes.loss_weights is None else changes.loss_weights
    config.train.loss_weights = dict(weights)
    config.evaluate.model = {main: changes.evaluate} if changes.evaluate else {}
    groups = (*recipe.groups, *how.groups(position))
    if beside:
        groups = tuple((path.replace('attention/', 'beside/'), *how) for path, *how in groups)
    config.optimizer.groups = groups if changes.groups is None else changes.groups
    exact = (how.exact or beside) and not replaced
    begins = 'is exactly the host' if exact else 'is not yet the host'
    begins += ', whose positions were replaced' if replaced else ''
    kept = 'a gate at 0 beside its attention' if beside else how.how
    config.notes = (
        f'{name}: with an empty memory the model {begins}: {kept}; positions of the memory: '
        f'{how.positions}',
        *changes.notes,
    )


def keep_plain(config: Any, context: int) -> None:
    """Limits the cache that a host without a memory has in training, and says what longer texts do.
    With `context` 0 the cache has room for at most `TRAINING_CACHE` tokens.
    """
    model, longest = config.model, context_of(config.model)
    cached = [model[name].window for name in {*model.attention} & OWN_LAYERS['attention']]
    kept = max(TRAINING_CACHE, config.train.segment_length)
    if has_table(model) and longest:
        config.notes = (
            f'none: there are positions for {model.num_positions:,} tokens; longer texts are read in '
            'windows of whole segments, each with an empty cache',
        )
    elif cached and max(cached) > kept and not context:
        model.cache_tokens = kept
        config.notes = (
            f'none: tokens see their segment and {kept:,} tokens before it, of the {max(cached):,} that '
            'the host can see, in training and in --mode=evaluate; context=N sees N, '
            '--config.model.cache_tokens=0 all',
        )


def spare_scores(model: Any) -> None:
    """Has scores computed again for derivatives, unless something is read inside of blocks."""
    if not any(LAYERS[name].layer.between for name in model.around if name):
        model.remat = 'dots_with_no_batch_dims_saveable'


def rate_of_host(config: Any, rate: float) -> None:
    """Multiplies the learning rate of the host's parameters by `rate`; 0 freezes them.

    Raises:
      UsageError: then nothing is left to learn.
    """
    adapted = config.model.lora.rank
    recurrent = _recurrent(config)
    own = all({*config.model[kind]} - {*recurrent} <= OWN_LAYERS[kind] for kind in OWN_LAYERS)
    if own and not (rate or adapted or any((*config.model.beside, *config.model.around))):
        raise UsageError('frozen: nothing is left to learn; add a memory=NAME or lora=RANK.')
    kept = tuple(group for group in config.optimizer.groups if not group[0].startswith(HOST))
    paths = HOST + _gates_and_own(config.model, recurrent)
    config.optimizer.groups = (*kept, (paths, float(rate), bool(rate)))


def _gates_and_own(model: Any, recurrent: Collection[str]) -> str:
    """More of `HOST`: what attention with an output gate, and `recurrent` layers, have besides maps."""
    layers = [
        str(i)
        for i, name in enumerate(model.attention)
        if name in recurrent
        or (name in OWN_LAYERS['attention'] and model[name].get('output_gate', False))
    ]
    return f'|^block_({"|".join(layers)})/attention/(?!projections/)' if layers else ''


def numbers(layers: str, num_layers: int) -> tuple[int, ...]:
    """Numbers of layers, from '3', '0-5', 'last' or several of them joined by '+'.

    Raises:
      UsageError: anything else, or layers that the model does not have.
    """
    chosen: set[int] = set()
    for part in layers.split('+'):
        first, _, last = part.replace('last', str(num_layers - 1)).partition('-')
        if not first.isdigit() or not (last or first).isdigit() or part.endswith('-'):
            raise UsageError(
                f'layers={layers}: numbers from 0 are needed, such as 3, 0-5 or 2+last.'
            )
        chosen |= set(range(int(first), int(last or first) + 1))
    if not chosen:
        raise UsageError(f'layers={layers}: has no layer; the smaller number comes first.')
    if max(chosen) >= num_layers:
        raise UsageError(f'layers={layers}: the host has the layers 0 to {num_layers - 1}.')
    return tuple(sorted(chosen))


def _main(recipe: Recipe) -> str:
    """The layer type that is the memory."""
    return next(iter(recipe.sections))


def _position(model: Any) -> str:
    """The position scheme of the host's attention, as `Graft.fields` takes it."""
    for name in {*model.attention}:
        if 'position' in model[name]:
            return model[name].position
    return 'none'


def _recurrent(config: Any) -> frozenset[str]:
    """Names of layers in place of attention that a host has by itself, not of a memory in its export."""
    names = {name for name in config.model.attention if LAYERS[name].hosts}
    if names and config.train.start_from:
        from longmem_jax.hosts import hosts  # imports readers of tensors

        names &= {*hosts.find(config.train.start_from).plain.attention}
    return frozenset(names)


def _require_plain(model: Any, name: str, kind: str, recurrent: Collection[str]) -> None:
    """Raises `UsageError` if layers of this kind are not the host's own any more."""
    others = sorted({*model[kind]} - OWN_LAYERS[kind] - {*recurrent})
    if others:
        raise UsageError(
            f'memory={name}: config.model.{kind} has {", ".join(others)} already, as this host was '
            'exported; leave out memory= to keep that, or give the folder of the host without a memory.'
        )


def _require_fitting(
    model: Any,
    name: str,
    main: str,
    stands: str,
    chosen: Sequence[int],
    recurrent: Collection[str],
) -> None:
    """Raises `UsageError` if a memory cannot stand there in a host with layers of another kind."""
    if main in recurrent:
        raise UsageError(f'memory={name}: the host has {main} layers by itself, of other sizes.')
    if stands == 'around' and recurrent:
        raise UsageError(
            f'memory={name}: stands around the blocks, with tokens of its own that layers of this host '
            f'({", ".join(recurrent)}) would remember; take a memory of attention layers.'
        )
    if stands != 'attention':
        return
    beside = f'use memory={name},beside'
    wrong = [i for i in chosen if model.attention[i] in recurrent]
    if wrong:
        raise UsageError(
            f'memory={name}: layer {wrong[0]} of the host is {model.attention[wrong[0]]} by itself; '
            f'choose others by layers=, or {beside}.'
        )
    if any(model[model.attention[i]].get('output_gate', False) for i in chosen):
        raise UsageError(
            f'memory={name}: the attention of this host has an output gate, which a memory in its place '
            f'has not; {beside}.'
        )


def _replace_positions(model: Any) -> None:
    """Rotary positions in every layer instead of those in the embeddings."""
    if model.head_dim % 2:
        raise UsageError(f'position=rotary: rotates pairs, and head_dim = {model.head_dim} is odd.')
    model.position, model.num_positions = 'none', 0
    for name in {*model.attention}:
        model[name].position = 'rotary'


def _chosen(
    model: Any, recipe: Recipe, main: str, stands: str, recurrent: Collection[str]
) -> tuple[int, ...]:
    """Where the memory goes if nothing is said: where its recipe has it, or into the nearest that may.

    Where the host has layers of several kinds, these are those that see the whole text.
    """
    # Positions in embeddings restart, and then no layer keeps its window.
    windows = ('sliding',) if 'full' in model.attention and model.position == 'none' else ()
    left_out = {*recurrent, *windows} if stands == 'attention' else set()
    places = dict(attention=recipe.attention, feed_forward=recipe.feed_forward)
    stack = places.get(LAYERS[main].place)  # around: all layers, whatever the recipe's depth is
    wanted = [i for i in range(model.num_layers) if not stack or stack[i] == main]
    able = [i for i in range(model.num_layers) if model.attention[i] not in left_out]
    return tuple(sorted({min(able, key=lambda i: abs(i - want)) for want in wanted if able}))


def _keep_others(config: Any, chosen: Sequence[int], main: str, extra: int) -> None:
    """Prepares the host's attention for segments, around a memory `main` in the layers `chosen`.

    `extra`: tokens of the memory that are put around every segment.

    Raises:
      UsageError: a layer that is replaced, or loses its own window, sees less than a segment.
    """
    model, segment = config.model, config.train.segment_length
    windows = [model[name].get('window', segment) for name in model.attention]
    restarts = model.position != 'none'
    for layer, window in enumerate(windows):
        if window < segment and (layer in chosen or restarts):
            raise UsageError(
                f'config.train.segment_length = {segment}: layer {layer} of the host sees {window} '
                f'tokens; use segment={window} or less'
                + ('.' if layer in chosen else ', or position=rotary.')
            )
    if restarts:
        model.positions_restart = True
        model.local = section('local', position='none')
        model.attention = ('local',) * model.num_layers
        return
    if 'full' not in model:
        return
    grafted = ((name, entry.graft) for name, entry in LAYERS.items() if entry.graft)
    name, window_graft = next((name, graft) for name, graft in grafted if graft.window)
    if name == main and {i for i, own in enumerate(model.attention) if own == 'full'} - {*chosen}:
        why = 'the others would lose the first tokens of the text, which breaks a decoder'
        raise UsageError(f'layers=: {why}; leave out layers=, so that all have {name!r}.')
    # Its fields are the memory's; what it keeps would not be of the text; or it has no gate, and other
    # layers of the host remember the first tokens.
    if name == main or extra or model.full.get('output_gate', False) or _recurrent(config):
        model.full.window = segment + extra
        return
    scale = scale_of(config, reach=segment)
    fields = recipes()[name](scale).sections[name] | window_graft.fields(scale, _position(model))
    model[name] = section(name, **fields)
    model.attention = tuple(name if layer == 'full' else layer for layer in model.attention)

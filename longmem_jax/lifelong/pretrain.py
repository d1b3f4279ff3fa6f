"""A small encoder pretrained on the texts of a stream, without their answers (Devlin et al., 2019).

Masked language modelling: 15 % of the tokens are chosen; of these 80 % become [MASK], 10 % another
token, and 10 % stay; all of them are predicted. BERT also predicts from its pooled vector whether two
texts follow each other, which is impossible for single texts. Here the pooled vector predicts which
tokens its text has (`bag_weight`), since masking alone asks nothing of the first token, and an episodic
memory finds texts by it.

All methods and the frozen key network of a comparison begin with one such checkpoint, which is the
folder of a BERT.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from longmem_jax.data.learn_tokenizer import MARKS, learn
from longmem_jax.data.tokenizer_files import load_tokenizer
from longmem_jax.data.tokenizers import FromJson
from longmem_jax.errors import UsageError, say
from longmem_jax.hosts import export
from longmem_jax.lifelong import encoders
from longmem_jax.lifelong.data.texts import Marked, Texts
from longmem_jax.lifelong.rows import Inputs, inputs
from longmem_jax.lifelong.steps import update
from longmem_jax.problems import defaults_and_rules, of_section

SETTINGS, FIELDS = defaults_and_rules(
    # Of a WordPiece vocabulary that is learned from the texts.
    vocab_size=(8_000, (257, 10**7)),
    max_length=(128, (8, 2**15)),  # tokens of a text; longer ones are cut into several
    num_steps=(20_000, (1, 10**9)),
    batch=(64, (1, 10**6)),
    # Highest; it rises for a tenth of the steps and falls to 0.
    learning_rate=(5e-4, (0.0, 1.0)),
    weight_decay=(0.01, (0.0, 1.0)),
    dropout=(0.0, (0.0, 0.99)),
    share=(0.15, (0.01, 0.99)),  # of tokens that are predicted
    bag_weight=(1.0, (0.0, 1e6)),  # of predicting all tokens of a text from its pooled vector
    seed=(0, int),
)
TO_MASK, TO_OTHER = 0.8, 0.1  # shares of the chosen tokens
LOG_EVERY = 100


class Special(NamedTuple):
    """Tokens of the tokenizer that are not text.

    Attributes:
      mask: the id of [MASK].
      others: ids of the marks, which are never predicted.
      vocab_size: of the tokenizer.
    """

    mask: int
    others: tuple[int, ...]
    vocab_size: int


class Masked(NamedTuple):
    """Texts with some tokens hidden.

    Attributes:
      tokens: int32 [n, length].
      places: int32 [n, most], the chosen tokens.
      targets: int32 [n, most], what stood there.
      there: bool [n, most]; a short text has fewer.
    """

    tokens: jax.Array
    places: jax.Array
    targets: jax.Array
    there: jax.Array


def check(settings: Mapping[str, Any]) -> list[str]:
    """Problems of the settings, each beginning with the name of a field."""
    return of_section(settings, FIELDS)


def is_text(texts: Inputs, special: Special) -> jax.Array:
    """Which tokens are text, bool [n, length]."""
    marks = jnp.isin(texts.tokens, jnp.asarray(special.others, jnp.int32))
    return texts.valid & ~marks


def mask(key: jax.Array, texts: Inputs, special: Special, share: float) -> Masked:
    """Hides tokens (Devlin et al., 2019, sec. 3.1); at least one of each text that has any."""
    which, how, other = jax.random.split(key, 3)
    allowed = is_text(texts, special)
    length = texts.tokens.shape[1]
    most = max(round(share * length), 1)
    noise = jnp.where(allowed, jax.random.uniform(which, allowed.shape), -1.0)
    _, places = jax.lax.top_k(noise, most)
    count = allowed.sum(axis=1, keepdims=True)
    wanted = jnp.minimum(jnp.maximum(jnp.round(share * count), 1), count)
    there = jnp.arange(most)[None] < wanted
    targets = jnp.take_along_axis(texts.tokens, places, axis=1)
    drawn = jax.random.uniform(how, targets.shape)
    others = jax.random.randint(other, targets.shape, 0, special.vocab_size)
    shown = jnp.where(drawn < TO_MASK + TO_OTHER, others, targets)
    shown = jnp.where(drawn < TO_MASK, special.mask, shown)
    rows = jnp.arange(len(targets))[:, None]
    tokens = texts.tokens.at[rows, places].set(jnp.where(there, shown, targets))
    return Masked(tokens, places, targets, there)


def initial_head(width: int, vocab_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Parameters of the output layer, whose vectors are those of the input; as in BERT."""
    return {
        'kernel': width**-0.5 * jax.random.normal(key, (width, width), jnp.float32),
        'bias': jnp.zeros((width,), jnp.float32),
        'scale': jnp.ones((width,), jnp.float32),
        'shift': jnp.zeros((width,), jnp.float32),
        'out_bias': jnp.zeros((vocab_size,), jnp.float32),
    }


def log_probabilities(head: Mapping[str, Any], table: jax.Array, vectors: jax.Array) -> jax.Array:
    """Of all tokens, float32 [..., vocabulary], by vectors [..., width]."""
    x = jax.nn.gelu(vectors @ head['kernel'] + head['bias'], approximate=False)
    x = jax.nn.standardize(x, epsilon=1e-12) * head['scale'] + head['shift']
    return jax.nn.log_softmax(x @ table.T + head['out_bias'])


def objective(
    params: Any,
    encoder: encoders.BertEncoder,
    texts: Inputs,
    special: Special,
    settings: Mapping[str, Any],
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Nats per masked token and, weighted, per token of a text by its pooled vector.

    And both alone. `texts` have nothing hidden; `key` is of masking and dropout.
    """
    masking, dropping = jax.random.split(key)
    hidden = mask(masking, texts, special, settings['share'])
    encoded = encoder.encode(
        params['encoder'],
        Inputs(hidden.tokens, texts.valid, texts.types),
        dropping if settings['dropout'] else None,
    )
    table = params['encoder']['embedding']['table_0']
    vectors = jnp.take_along_axis(encoded.tokens, hidden.places[..., None], axis=1)
    chosen = log_probabilities(params['head'], table, vectors)
    chosen = jnp.take_along_axis(chosen, hidden.targets[..., None], axis=-1)[..., 0]
    masked = -(chosen * hidden.there).sum() / jnp.maximum(hidden.there.sum(), 1)
    whole = log_probabilities(params['head'], table, encoded.pooled)
    whole = jnp.take_along_axis(whole, texts.tokens, axis=1)
    counted = is_text(texts, special)
    bag = -(whole * counted).sum() / jnp.maximum(counted.sum(), 1)
    return masked + settings['bag_weight'] * bag, {'masked': masked, 'bag': bag}


def train(
    encoder: encoders.BertEncoder,
    tokens: np.ndarray,
    special: Special,
    settings: Mapping[str, Any],
    report: Callable[[str], None] = say,
) -> tuple[Any, np.ndarray]:
    """Pretrains an encoder on tokens [texts, length], `NOTHING` after them.

    They stay on the devices. Returns its parameters, and the nats per masked token of every step,
    float32 [steps].

    Raises:
      UsageError: the objective is not finite at the end.
    """
    steps, batch, seed = settings['num_steps'], settings['batch'], settings['seed']
    key = jax.random.key(seed)
    first, second, key = jax.random.split(key, 3)
    params = {
        'encoder': encoder.init(first),
        'head': initial_head(encoder.width, special.vocab_size, second),
    }
    rise = steps // 10
    schedule = optax.warmup_cosine_decay_schedule(
        0.0 if rise else settings['learning_rate'], settings['learning_rate'], rise, steps
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            schedule,
            b2=0.98,
            weight_decay=settings['weight_decay'],
            mask=jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        ),
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> tuple[Any, Any, Any]:
        drawing, reading = jax.random.split(key)
        numbers = jax.random.randint(drawing, (batch,), 0, len(tokens))
        texts = inputs(tokens[numbers], jnp.zeros((batch, tokens.shape[1]), jnp.int32))
        (loss, parts), gradients = jax.value_and_grad(objective, has_aux=True)(
            params, encoder, texts, special, settings, reading
        )
        moved = update(optimizer, params, state, gradients, loss)
        return moved.params, moved.optimizer, parts

    state, losses = optimizer.init(params), []
    placed = jnp.asarray(tokens)
    for number in range(steps):
        params, state, parts = step(params, state, placed, jax.random.fold_in(key, number))
        losses.append(parts['masked'])
        if number % LOG_EVERY == 0 or number == steps - 1:
            report(
                f'step {number + 1:,} of {steps:,}: {float(parts["masked"]):.3f} nats per masked token, '
                f'{float(parts["bag"]):.3f} per token from the pooled vector'
            )
    found = np.asarray(jax.device_get(losses), np.float32)
    if not np.isfinite(found[-1]):
        raise UsageError('learning_rate: pretraining diverged; use a lower one.')
    return params['encoder'], found


def rows_of(texts: Sequence[str], tokenizer: FromJson, length: int) -> np.ndarray:
    """Tokens of all texts, [rows, length]; a text that is too long is several rows.

    Raises:
      UsageError: a tokenizer without [CLS] and [SEP], or no text.
    """
    marked, parts = Marked(tokenizer), []
    for ids in marked.all_ids(texts):
        parts += [marked.join(ids[at : at + length - 2]) for at in range(0, len(ids), length - 2)]
    if not parts:
        raise UsageError('no text to pretrain on: config.data.path has no rows.')
    return marked.rows(parts, length, np.zeros((len(parts),), np.uint8)).tokens


def special_of(tokenizer: FromJson) -> Special:
    """What is not text; raises `UsageError` if there is no [MASK]."""
    ids = {name: tokenizer.token_id(name) for name in MARKS}
    if ids['[MASK]'] is None:
        raise UsageError(
            'config.data.tokenizer: has no [MASK], which pretraining writes over words; use the folder '
            "of a BERT model, or kind = 'wordpiece'."
        )
    return Special(
        ids['[MASK]'], tuple(i for i in ids.values() if i is not None), tokenizer.vocab_size
    )


def pretrain(
    texts: Sequence[str],
    folder: str,
    settings: Mapping[str, Any],
    sizes: Mapping[str, Any] = encoders.SMALL,
    report: Callable[[str], None] = say,
) -> list[str]:
    """Learns a vocabulary and an encoder from texts and writes both as the folder of a BERT, which
    must not exist, or be empty. `sizes` are attributes as in a BERT's `config.json`. Returns the
    names of the files.

    Raises:
      UsageError: wrong settings, a folder with files, or no texts.
    """
    if problems := check(settings):
        raise UsageError('; '.join(problems) + '.')
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f'{folder}: already has files; give a folder that is empty or new.')
    if not texts:
        raise UsageError('no text to pretrain on: config.data.path has no rows.')
    vocabulary = target.with_name(f'{target.name}.tokenizer.json')
    learn('wordpiece', Texts(texts), settings['vocab_size'], vocabulary)
    try:
        tokenizer: Any = load_tokenizer('wordpiece', vocabulary)
        tokens = rows_of(texts, tokenizer, settings['max_length'])
        model = encoders.small_model(tokenizer.vocab_size, settings['max_length'], sizes)
        report(
            f'{len(texts):,} texts, {len(tokens):,} rows of {settings["max_length"]} tokens, '
            f'{tokenizer.vocab_size:,} different ones'
        )
        encoder = encoders.untrained(model, dropout=settings['dropout'])
        params, losses = train(encoder, tokens, special_of(tokenizer), settings, report)
        card = (
            f'# {target.name}\n\nA text encoder (BERT), pretrained with longmem_jax for '
            f'{settings["num_steps"]:,} steps of {settings["batch"]} texts: masked words, and the words '
            f'of a text from its pooled vector. The last tenth of the steps had '
            f'{losses[-max(len(losses) // 10, 1) :].mean():.3f} nats per masked token.\n'
        )
        return export.save(target, model, params, files={'tokenizer.json': vocabulary}, card=card)
    finally:
        vocabulary.unlink(missing_ok=True)

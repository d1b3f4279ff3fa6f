"""Where documents come from: the values of `config.data.source` that are not generated tasks."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from longmem_jax.data import hubs
from longmem_jax.data.documents import Source
from longmem_jax.data.folders import Folders
from longmem_jax.data.parallel import PairCorpus, PairTexts, load_pairs
from longmem_jax.data.stdlib import StandardLibrary
from longmem_jax.data.tasks.registry import Players
from longmem_jax.data.text_files import TextFiles
from longmem_jax.registry import Registry


class Prompts(NamedTuple):
    """Prompts of a benchmark, for models that write freely.

    Attributes:
      name: of the task.
      samples: JSON objects with 'input' and 'answer_prefix', which make the prompt, and 'outputs', the
        expected strings.
      generated: tokens that a model may write.
      score: 'module:function' of (text, outputs) to a number from 0 to 1.
    """

    name: str
    samples: Iterable[dict[str, Any]]
    generated: int
    score: str


class DataSource(NamedTuple):
    """A source of documents.

    Attributes:
      texts: (`config.data`, split) to the documents as texts, also to learn a vocabulary from.
      corpus: (`config.data`, split, tokenizer) to the tokenized documents, for a source whose documents
        are more than their text. None = the texts are tokenized; they may be cut into pieces, and be
        tokenized before training.
      check: `config.data.task` to its problems; None = it has no fields.
      reads: what it is for, see `models.kinds.Kind.reads`.
      sampled: whether a checkpoint keeps a digest of some of its tokenized documents.
      scores: 'module:function' of its own scores: (experiment, parameters, split, progress) to results
        by name, as JSON, which it also writes to the workdir; '' = none.
      scored: `config.data.task` to whether there are `scores`; None = always.
      require: 'module:function': raises `UsageError` for a config whose scores lack a package, or data.
      players: (`config.data`, tokenizer) to rules to compare models with; None = n-grams.
      ngrams: whether n-grams can be a floor; False = only answers are scored, which have no bytes.
      prompts: (`config.data`, tokenizer) to the test split as prompts, for each length; None = none.
    """

    texts: Callable[[Any, str], Source]
    corpus: Callable[[Any, str, Any], Any] | None = None
    check: Callable[[Any], list[str]] | None = None
    reads: str = 'texts'
    sampled: bool = True
    scores: str = ''
    scored: Callable[[Any], bool] | None = None
    require: str = ''
    players: Callable[[Any, Any], Players] | None = None
    ngrams: bool = True
    prompts: Callable[[Any, Any], Iterable[Prompts]] | None = None


def _text(data: Any, split: str) -> Source:
    fractions = tuple(data.fractions)
    if data.documents == 'folder':
        return Folders(data.path, split, tuple(data.endings), fractions)
    return TextFiles(data.path, split, data.documents, fractions, data.text_field)


SOURCES: Registry[DataSource] = Registry(
    'config.data.source',
    DataSource,
    {
        'stdlib': DataSource(lambda data, split: StandardLibrary(split)),
        'text': DataSource(_text),
        'tfds': DataSource(lambda data, split: hubs.tfds_source(data.name, split)),
        'huggingface': DataSource(lambda data, split: hubs.huggingface_source(data.name, split)),
        'parallel': DataSource(
            lambda data, split: PairTexts(load_pairs(data, split)), PairCorpus, reads='pairs'
        ),
        'ruler': 'longmem_jax.data.sets.ruler.source:SOURCE',
        'babilong': 'longmem_jax.data.sets.babilong.source:SOURCE',
        'passkey': 'longmem_jax.data.sets.passkey:SOURCE',
        'second_reading': 'longmem_jax.data.sets.second_reading:SOURCE',
        'stories': 'longmem_jax.data.sets.stories:SOURCE',
    },
    kind='source',
    brought='sources',
)

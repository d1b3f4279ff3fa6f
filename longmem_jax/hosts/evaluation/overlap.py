"""How much a text shares with a reference: F1 of words, ROUGE, METEOR (extra `[dialogue]`)."""

import collections
import importlib
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from longmem_jax.errors import UsageError

WORD = re.compile(r'\w+|[^\w\s]')
ARTICLES = {'a', 'an', 'the'}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f'scores of responses need rouge-score and nltk ({error}): pip install '
            "'longmem_jax[dialogue]'; --config.data.task.respond=False leaves them out."
        ) from error


def require_libraries() -> None:
    """Raises `UsageError` if a library is missing: before hours of training."""
    for name in ('rouge_score.rouge_scorer', 'nltk.translate.meteor_score'):
        _library(name)


def f1(reference: str, found: str) -> float:
    """F1 of the words of two texts, in lower case, without punctuation and articles (as for SQuAD)."""
    counts = []
    for text in (reference, found):
        plain = text.lower().translate(str.maketrans('', '', string.punctuation))
        counts.append(collections.Counter(w for w in plain.split() if w not in ARTICLES))
    both = (counts[0] & counts[1]).total()
    return 2 * both / (counts[0].total() + counts[1].total()) if both else 0.0


class _NoSynonyms:
    """In place of WordNet."""

    def synsets(self, word: str) -> list[Any]:
        return []


def _wordnet() -> Any:
    """NLTK's WordNet, or None if its data is not on this machine."""
    wordnet = _library('nltk.corpus').wordnet
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    return wordnet


def overlap(references: Sequence[str], found: Sequence[str]) -> dict[str, float]:
    """Means over pairs of a reference and a text, in percent.

    Args:
      references, found: as many texts each.

    Returns:
      'f1'; 'rouge1' and 'rougeL', F-measures with stemming; 'rouge1_recall' and 'rougeL_recall', what
      the infinity-former's released code reports under the name of ROUGE; 'meteor', or
      'meteor_exact_stem' where WordNet's data is missing, so that only equal words and stems match.

    Raises:
      UsageError: a library is missing, or there are no texts.
    """
    if not references or len(references) != len(found):
        raise UsageError(
            f'{len(references)} references, {len(found)} texts: the numbers must be equal.'
        )
    scorer = _library('rouge_score.rouge_scorer').RougeScorer(
        ['rouge1', 'rougeL'], use_stemmer=True
    )
    meteor, wordnet = _library('nltk.translate.meteor_score').single_meteor_score, _wordnet()
    name = 'meteor' if wordnet else 'meteor_exact_stem'
    rows: dict[str, list[float]] = collections.defaultdict(list)
    for reference, text in zip(references, found, strict=True):
        rouge = scorer.score(reference, text)
        rows['f1'].append(f1(reference, text))
        for kind in ('rouge1', 'rougeL'):
            rows[kind].append(rouge[kind].fmeasure)
        for kind in ('rouge1', 'rougeL'):
            rows[f'{kind}_recall'].append(rouge[kind].recall)
        words = [WORD.findall(each) for each in (reference, text)]
        rows[name].append(meteor(*words, wordnet=wordnet or _NoSynonyms()))
    return {name: 100 * float(np.mean(values)) for name, values in rows.items()}

"""Whether a text is the one that a datastore was made from, so that its own documents can be left out.

A document's number is its position in the split, whatever the number of lanes that read it. Numbers of
a text and of a datastore mean the same documents if both have the same documents in the same order.
Paths are not compared for that, so a text may be moved.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longmem_jax.data.corpus import AnyCorpus
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.retrieval.datastore import Datastore


def fingerprint_of(corpus: AnyCorpus) -> str:
    """A short checksum of the tokens of all documents in order."""
    whole = hashlib.sha256(str(len(corpus)).encode())
    for document in range(len(corpus)):
        tokens = np.ascontiguousarray(corpus[document].tokens, np.int32)
        whole.update(f' {len(tokens)} '.encode() + tokens.tobytes())
    return whole.hexdigest()[:16]


def source_of(experiment: Experiment, split: str) -> dict[str, Any]:
    """The text of a datastore, as its manifest describes it."""
    data = experiment.config.data
    return {
        'split': split,
        'path': data.path,
        'name': data.name,
        'source': data.source,
        'documents': fingerprint_of(experiment.corpus(split)),
    }


def is_own_text(store: Datastore, here: dict[str, Any]) -> bool:
    """Whether a datastore has the documents of a text (`source_of`), with the same numbers.

    If so, a token's own document must be left out of the search, or its nearest neighbour is
    itself.

    Raises:
      UsageError: it was made from the same files, but they were changed or are now cut into other
        documents, so that a token's own document is not known.
    """
    there = store.source
    if here['documents'] == there.get('documents'):
        return True
    same = all(here[name] == there.get(name, '') for name in ('split', 'name', 'source'))
    if same and _place(here) == _place(there):
        text = here['path'] or here['name'] or here['source']
        raise UsageError(
            f'{store.folder}: was made from {here["split"]} of {text}, but its documents have changed '
            'since (files, config.data.documents, pieces, fractions or seed), so a token could find '
            'itself. Build the datastore again in another folder, or go back to the config.data it was '
            'made with.'
        )
    return False


def warnings(
    store: Datastore | None, experiment: Experiment, uses: dict[str, str]
) -> Iterator[str]:
    """Sentences about a datastore of the texts that it is used on.

    `uses`: split to what is done with it, such as 'scored'.
    """
    for split, how in uses.items():
        if store is not None and is_own_text(store, source_of(experiment, split)):
            yield (
                f'{store.folder} holds {split}, which is {how}: a token finds the other documents of '
                'its own split, so it gains more than new text would; build the datastore with '
                '--split=train.'
            )


def _place(source: dict[str, Any]) -> Path | str:
    """The files of a text, the same for every way to write their path."""
    if not source.get('path'):
        return ''
    try:
        return Path(source['path']).expanduser().resolve()
    except (ValueError, RuntimeError, OSError):  # not a path of this machine
        return source['path']

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


def fingerprint_of(corpus: AnyCorpus) -> tuple[str, str]:
    """Short checksums of the tokens of the first and last document, and of those of all in order.

    Datastores of earlier versions have the first only.
    """
    ends, whole = (hashlib.sha256(str(len(corpus)).encode()) for _ in range(2))
    for document in range(len(corpus)):
        tokens = np.ascontiguousarray(corpus[document].tokens, np.int32)
        whole.update(f' {len(tokens)} '.encode() + tokens.tobytes())
        for last in (0, len(corpus) - 1):  # a single document is both
            if document == last:
                ends.update(tokens.tobytes())
    return ends.hexdigest()[:16], whole.hexdigest()[:16]


def source_of(experiment: Experiment, split: str) -> dict[str, Any]:
    """The text of a datastore, as its manifest describes it."""
    data = experiment.config.data
    ends, whole = fingerprint_of(experiment.corpus(split))
    return {
        'split': split,
        'path': data.path,
        'name': data.name,
        'source': data.source,
        'corpus': ends,
        'documents': whole,
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
    if here['corpus'] == there.get('corpus') and there.get('documents') in (
        None,
        here['documents'],
    ):
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
            if 'documents' not in store.source:
                yield (
                    f'{store.folder} was built by an earlier version, which kept a checksum of the '
                    f'first and the last document only: if others of {split} have changed or moved '
                    'since, wrong ones are left out; then build it again in another folder.'
                )
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

"""What retrieval brings; see `subject.Subject`."""

import functools

from longmem_jax.subject import Mode, Section, Subject

SECTION, HERE = 'retrieval', 'longmem_jax.retrieval'
_mode = functools.partial(Mode, documents=True)
SUBJECT = Subject(
    about='a corpus that a trained model looks things up in: kNN-LM, continuous cache, SPALM',
    sections={
        SECTION: Section(
            f'{HERE}.section:section',
            'kind',
            follows=(('context', 'evaluate', 'context'),),
        )
    },
    modes=(
        _mode('evaluate', f'{HERE}.evaluate:evaluate', ('split',), section=SECTION, writes=True),
        _mode('build_datastore', f'{HERE}.build_datastore:build', ('split',), adds=SECTION),
        # `start` = 'fresh' needs no run, only that of the keys.
        _mode('train_spalm', f'{HERE}.spalm:train', adds=SECTION, trained=False, writes=True),
    ),
    checks=(f'{HERE}.settings:check',),
)

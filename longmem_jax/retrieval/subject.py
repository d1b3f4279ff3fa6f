"""What retrieval brings; see `subject.Subject`."""

from longmem_jax.subject import Mode, Section, Subject

SECTION = 'retrieval'
SUBJECT = Subject(
    about='a corpus that a trained model looks things up in: kNN-LM, continuous cache, SPALM',
    sections={
        SECTION: Section(
            'longmem_jax.retrieval.section:section',
            'kind',
            follows=(('context', 'evaluate', 'context'),),
        )
    },
    modes=(
        Mode(
            'evaluate',
            'longmem_jax.retrieval.evaluate:evaluate',
            ('split',),
            section=SECTION,
            writes=True,
            documents=True,
        ),
        Mode(
            'build_datastore',
            'longmem_jax.retrieval.build_datastore:build',
            ('split',),
            adds=SECTION,
            documents=True,
        ),
        Mode(
            'train_spalm',
            'longmem_jax.retrieval.spalm:train',
            adds=SECTION,
            writes=True,
            documents=True,
        ),
    ),
    checks=('longmem_jax.retrieval.settings:check',),
)

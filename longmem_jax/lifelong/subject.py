"""What lifelong learning brings; see `subject.Subject`."""

from longmem_jax.subject import Mode, Section, Subject

SECTION = 'lifelong'
SUBJECT = Subject(
    about='tasks one after another, with methods against forgetting',
    sections={
        SECTION: Section(
            'longmem_jax.lifelong.section:section',
            'method',
            open=True,
            gone=('faiss_rows', 'faiss_probe'),
            lower='longmem_jax.lifelong.commands:lower',
        )
    },
    modes=(
        Mode(
            'train',
            'longmem_jax.lifelong.commands:train',
            ('profile', 'tracker'),
            section=SECTION,
            trained=False,
            writes=True,
        ),
        Mode(
            'evaluate',
            'longmem_jax.lifelong.commands:evaluate',
            ('split',),
            section=SECTION,
            writes=True,
        ),
    ),
    checks=('longmem_jax.lifelong.section:check',),
    commands=('longmem_jax.lifelong.pretrain_encoder',),
)

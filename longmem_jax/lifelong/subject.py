"""What lifelong learning brings; see `subject.Subject`."""

import functools

from longmem_jax.subject import Mode, Section, Subject

SECTION, COMMANDS = 'lifelong', 'longmem_jax.lifelong.commands'
_mode = functools.partial(Mode, section=SECTION, writes=True)
SUBJECT = Subject(
    about='tasks one after another, with methods against forgetting',
    sections={
        SECTION: Section(
            'longmem_jax.lifelong.section:section',
            'method',
            open=True,
            lower=f'{COMMANDS}:lower',
        )
    },
    modes=(
        _mode('train', f'{COMMANDS}:train', ('profile', 'tracker'), trained=False),
        _mode('evaluate', f'{COMMANDS}:evaluate', ('split',)),
    ),
    checks=('longmem_jax.lifelong.section:check',),
    commands=('longmem_jax.lifelong.pretrain_encoder',),
)

"""What agents bring; see `subject.Subject`."""

import functools

from longmem_jax.subject import Mode, Section, Subject

SECTION, COMMANDS = 'reinforcement', 'longmem_jax.agents.commands'
_mode = functools.partial(Mode, section=SECTION, writes=True)
SUBJECT = Subject(
    about='agents that learn from rewards, with a memory of what they observed',
    sections={
        SECTION: Section(
            'longmem_jax.agents.section:section',
            'environment',
            open=True,
            lower=f'{COMMANDS}:lower',
        )
    },
    modes=(
        _mode('train', f'{COMMANDS}:train', ('profile', 'tracker'), trained=False),
        _mode('evaluate', f'{COMMANDS}:evaluate', ('split',)),
        _mode('play', f'{COMMANDS}:play_from_flags', ('seed', 'temperature')),
    ),
    kinds={'agent': 'longmem_jax.agents.model:KIND'},
    checks=('longmem_jax.agents.section:check',),
)

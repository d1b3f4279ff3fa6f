"""What agents bring; see `subject.Subject`."""

from longmem_jax.subject import Mode, Section, Subject

SECTION = 'reinforcement'
SUBJECT = Subject(
    about='agents that learn from rewards, with a memory of what they observed',
    sections={
        SECTION: Section(
            'longmem_jax.agents.section:section',
            'environment',
            open=True,
            lower='longmem_jax.agents.commands:lower',
        )
    },
    modes=(
        Mode(
            'train',
            'longmem_jax.agents.commands:train',
            ('profile', 'tracker'),
            section=SECTION,
            trained=False,
            writes=True,
        ),
        Mode(
            'evaluate',
            'longmem_jax.agents.commands:evaluate',
            ('split',),
            section=SECTION,
            writes=True,
        ),
        Mode(
            'play',
            'longmem_jax.agents.commands:play_from_flags',
            ('seed', 'temperature'),
            section=SECTION,
            writes=True,
        ),
    ),
    kinds={'agent': 'longmem_jax.agents.model:KIND'},
    checks=('longmem_jax.agents.section:check',),
)

"""What the microscope brings; see `subject.Subject`."""

from longmem_jax.subject import TEXTS, Flag, Mode, Subject

READS = Flag('reads', 2000, 'inspect: the last tokens for which what they read is kept.', int, 0)
BESIDE = Flag(
    'beside', '', 'inspect: workdir of a run with the same tokenizer, to show next to this one.'
)
SUBJECT = Subject(
    about='a page that shows what a memory did for a text',
    modes=(
        Mode(
            'inspect',
            'longmem_jax.microscope.inspect:from_flags',
            (*TEXTS, READS, BESIDE),
        ),
    ),
)

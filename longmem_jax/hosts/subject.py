"""What pretrained models bring; see `subject.Subject`."""

from longmem_jax.subject import DRAWN, TEXTS, Flag, Mode, Subject

CHAT = Flag(
    'chat', False, 'generate: the prompt is what a user says; answer by the chat template.', bool
)
FOLDER = Flag('folder', '', 'export: the Hugging Face folder to write.')
GRAFT = Flag(
    'graft',
    '',
    'export: the file to write for what was added to a host that was kept, and no folder.',
)
PUSH = Flag('push', '', 'export: also upload it to ORG/NAME of the Hugging Face hub.')
DRY_RUN = Flag(
    'dry_run', False, 'export --push: show what would be uploaded, without uploading it.', bool
)
LICENSE = Flag(
    'license', '', "export: the licence in the model card, by the hub's name: apache-2.0."
)
SUBJECT = Subject(
    about='pretrained decoders and encoders, with a memory, and how they are scored',
    modes=(
        Mode(
            'generate',
            'longmem_jax.hosts.commands.chat:from_flags',
            (*TEXTS, *DRAWN, CHAT),
            option='chat',
        ),
        Mode(
            'export',
            'longmem_jax.hosts.commands.export:export',
            (FOLDER, GRAFT, PUSH, DRY_RUN, LICENSE),
        ),
    ),
    kinds={
        'classifier': 'longmem_jax.hosts.classifier:KIND',
        'text_encoder': 'longmem_jax.hosts.text_encoder:KIND',
    },
    sources={
        'cmu_dog': 'longmem_jax.hosts.data.cmu_dog:SOURCE',
        'superglue': 'longmem_jax.hosts.data.superglue:SOURCE',
        'superglue_pairs': 'longmem_jax.hosts.data.superglue_pairs:SOURCE',
    },
    checks=('longmem_jax.hosts.data.class_sets:check',),
    starts='longmem_jax.hosts.start:START',
    commands=('longmem_jax.hosts.commands.lm_eval', 'longmem_jax.hosts.commands.lm_eval_files'),
)

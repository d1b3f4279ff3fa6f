"""CMU-DoG: conversations about a document that is read once (Martins et al., 2022, Sec. 4.3, C.3).

python -m longmem_jax.main --config=configs/cmu_dog.py:path=GPT2 --config.data.path=CMU_DOG --workdir=DIR
`CMU_DOG` holds the original `Conversations/` and `WikiData/`; GPT2 is the folder of GPT-2 small, or
`gpt2` to fetch it from the hub. A continuous memory of 512 functions holds the document;
`:sticky=sampled` adds sticky memories. `:memory=compressive` compresses by 3 to 512 vectors, with the
reconstruction loss; `:memory=local` is GPT-2 with its input alone, `:no_document` leaves the document
out. Training ends with the perplexity of utterances, and with F1, ROUGE-1, ROUGE-L and METEOR of
utterances that the model writes itself (`pip install -e '.[dialogue]'`; without WordNet's data METEOR
matches equal words and stems only). `:segment=63` is for a host with short texts. `:tiny` is for two
cores: of the `path` of a small host, or without it of a model that has learned nothing.

Not the paper's: `segment_length`, 510 for 512, and `memory_length` of `compressive`: a rate of 3 must
divide both. `num_samples`, `ridge`, `sigma_sq_min`, `clip_norm`, `train.loss_weights.kl`, `length`,
`temperature`, `top_p` and `min_history` are those of the released code. `biases`, `padding`, `kl` and
`num_bins` are as in `gpt2_wikitext103.py`. `num_lanes` 4, a conversation each for four devices, where
the paper has batches of 1; `num_steps` is five epochs of these. Speakers are letters of the text, not
tokens of their own. Positions of compressed vectors: `position`, a bias like ALiBi's, and a learned one
per head with which they begin almost closed. `dtype` bfloat16 is ours.
"""

from longmem_jax.config.base import base, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import whole_number
from longmem_jax.configs import _gpt2_fine_tuning


def get_config(arg=''):
    config = base()

    config.model.dtype = 'bfloat16'
    continuous = given(
        memory_length=0,
        num_basis=512,
        widths=(0.005, 0.01),
        num_samples=512,
        tau=0.5,
        sigma_0=0.05,
        ridge=0.5,
        sigma_sq_min=1e-4,
        sticky='none',
        loss_weights=dict(kl=1e-5),
        groups=(),  # one rate for all
    )
    compressive = given(
        memory_length=510,
        compressed_length=512,
        rate=3,
        compression='convolution',
        reconstruction='attention',
    )
    memories = dict(infinity_former=continuous, compressive=compressive)

    config.data.source = 'cmu_dog'
    config.data.task = dict(
        document='before',
        train_on_document=True,
        respond=True,
        min_history=2,
        max_dialogues=0,
    )
    config.optimizer.name = 'adam'
    config.optimizer.learning_rate = 5e-5
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 3500  # 5 epochs of 3,290 conversations
    config.train.num_lanes = 4
    config.train.segment_length = 510
    config.train.segments_per_step = 4  # a conversation and its document, as a rule
    config.train.log_every = 50
    config.train.evaluate_every = 700
    config.evaluate.num_lanes = 16
    config.generate.length = 50
    config.generate.temperature = 1.0
    config.generate.top_p = 0.9
    config.generate.sample_length = 0

    def tiny(config):
        """Segments of 126, some minutes on two cores."""
        two_cores(config, steps=300, lanes=8, segment=126)
        continuous.fields.update(num_basis=64, widths=(0.02, 0.05), num_samples=126)
        compressive.fields.update(memory_length=126, compressed_length=128)
        config.data.task.max_dialogues = 8
        config.evaluate.num_lanes = 8

    def segment(config, value):
        """Another length of segments, such as a host's longest; for `compressive` a multiple of 3."""
        length = whole_number('segment', value)
        config.train.segment_length = length
        compressive.fields.update(memory_length=length)

    def no_document(config):
        """Conversations without the document."""
        config.data.task.document = 'none'

    return _gpt2_fine_tuning.fine_tuned(
        config, arg, memories=memories, tiny=tiny, segment=segment, no_document=no_document
    )

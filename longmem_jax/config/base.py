"""The fields of every configuration, with neutral values; files in `configs/` set the experiments'.

All fields are listed here except model settings that every layer gets, which are those of
`contract.ModelSettings`, and the fields of the layers, whose defaults (the papers' values) are in the
layers' own files; `config.recipes` copies them into the config. Code reads only the config.
"""

import dataclasses
from typing import Any

import ml_collections
from ml_collections import config_dict

from longmem_jax.config.recipes import section
from longmem_jax.config.sections import add, followed
from longmem_jax.contract import ModelSettings
from longmem_jax.data.text_files import FRACTIONS

EVERY = 1000  # steps between evaluations
# Section and field that follow the field of another section until they are set themselves; and the value
# where that field is 0: a run that is not evaluated is saved all the same.
FOLLOWS = (
    ('evaluate', 'segment_length', 'train', 'segment_length', 0),
    ('checkpoint', 'every', 'train', 'evaluate_every', EVERY),
)


# Settings that follow from other fields of a config.
FOUND = ('cache_dtype', 'token_std', 'leading', 'trailing')


def of_settings() -> dict[str, Any]:
    """The fields of `config.model` that are settings of all layers, with their neutral values."""
    return {
        field.name: field.default
        for field in dataclasses.fields(ModelSettings)
        if field.default is not dataclasses.MISSING and field.name not in FOUND
    }


def base(*subjects: str) -> ml_collections.ConfigDict:
    """A configuration of a small Transformer-XL without data.

    `subjects` names further sections, such as 'retrieval'.
    """
    config = ml_collections.ConfigDict()
    config.model = config_dict.create(
        kind='language_model',  # or 'seq2seq', or one of a package, with a section of that name
        vocab_size=257,  # number of ids in the logits; at least that of the tokenizer
        num_layers=2,  # blocks, each an attention and a feed-forward layer
        d_model=128,  # width of the residual stream
        d_embed=128,  # width of the (first cluster's) embedding vectors
        num_heads=4,  # attention heads per layer
        head_dim=32,  # width of a head's queries, keys and values
        d_feed_forward=512,  # width inside a dense feed-forward layer
        attention=('transformer_xl',) * 2,  # one name per layer; see memory/registry.py
        feed_forward=('dense',) * 2,  # one name per layer; see memory/registry.py
        beside=(),  # one attention layer per layer, or '', whose gated output is added; () = none
        around=(),  # one name per layer, or '', of what stands around the blocks; () = nothing
        transformer_xl=section('transformer_xl', memory_length=128),
        dense=section('dense'),
        parallel_residual=False,  # pre-norm: attention and feed-forward layer read the same input
        output_norm=(),  # with pre_norm, a bool per layer: norms of outputs, not of inputs; () = none
        both_norms=False,  # with pre_norm: norms of inputs, and others of outputs
        # Per layer a base of rotary positions without scaling, 0 = not rotated, -1 = as the model.
        rotary_bases=(),  # () = all as the model
        final_norm=True,  # with pre_norm: one more norm before the output layer
        scale_embedding=True,  # multiply token vectors by sqrt(d_model)
        position='none',  # absolute positions: 'none', 'sinusoidal', 'learned'
        num_positions=0,  # length of the position table; 0 = the segment length
        positions_restart=False,  # with num_positions: begin at 0 in every segment even so
        tie_weights=True,  # the output layer uses the token vectors of the embedding
        output_bias=True,  # add a learned bias to the logits
        cutoffs=(),  # adaptive embedding and softmax: first token of cluster 1, 2, ...
        div_val=1,  # width of cluster i is d_embed / div_val**i
        tie_projections=(False,),  # per cluster: the output projection is the input projection
        dropout=0.0,  # share of activations set to zero in training
        embedding_dropout=-1.0,  # dropout of embeddings and final output; -1 = dropout
        attention_dropout=0.0,  # dropout of attention weights
        # what attention also sees of the tokens just before: or 'half', 'last_four', 'last_eight',
        # 'convolution'
        token_shift='none',
        # What a block keeps for the backward pass, the rest is computed again: '' = everything, or a
        # policy of JAX: 'dots_saveable', 'dots_with_no_batch_dims_saveable', 'nothing_saveable'.
        remat='',
        loss_blocks=1,  # parts of a segment of which one has logits at a time, for large vocabularies
        layer_drop=0.0,  # share of blocks skipped per training step
        init_std=0.0,  # standard deviation of 'normal' kernels, and of tables; 0 = d_model**-0.5
        embedding_std=0.0,  # standard deviation of token vectors, before scaling; 0 = init_std
        dtype='float32',  # dtype of activations; 'bfloat16' on accelerators
        cache_dtype='',  # dtype of the key-value cache, 'float32' or 'bfloat16'; '' = dtype
        **of_settings(),
        # Low-rank parts of kernels (LoRA).
        lora=dict(
            rank=0,  # rank of the low-rank parts; 0 = none
            alpha=0.0,  # the parts are scaled by alpha / rank; 0 = rank
            # Pattern that is searched for in the paths of linear maps.
            targets='attention/projections/(query|value)$',
        ),
    )
    config.data = config_dict.create(
        # 'stdlib', 'text', 'tfds', 'huggingface', 'parallel', or another set; or a generated task
        source='text',
        path='',  # 'text', 'parallel': a folder with train, validation, test; 'text' also: one file
        name='',  # 'tfds', 'huggingface': the data set; 'parallel': a TFDS set if path is ''
        text_field='text',  # field of .jsonl, or column of .parquet, .csv and .tsv, with the text
        documents='file',  # what a document is: 'file', 'line', 'wiki', 'folder'
        endings=(),  # 'folder': only files with these endings, such as ('.py',)
        fractions=FRACTIONS,  # of one file, or of files without splits: training, validation, test
        pieces=1,  # parts of every training document, so that one can fill several lanes
        tokenized='',  # folder of tokens that --mode=tokenize writes; '' = tokenized when read
        # Of texts.
        tokenizer=dict(
            # or 'characters', 'words', 'bpe', 'wordpiece'; or of a file 'sentencepiece', 'tokenizers'
            kind='bytes',
            path='',  # file or folder of it; '' = learned from the training split
            size=0,  # size of a learned vocabulary; 0 = everything that occurs
        ),
        # Source 'parallel'.
        pairs=dict(
            languages=('', ''),  # languages of source and target
            max_source=0,  # room for the source, in tokens
            max_target=0,  # room for the target, in tokens
        ),
        # Begin token before texts that commands read, such as prompts: 'always', 'never', or 'auto', as
        # in training, and for a pretrained model that was not trained here as its tokenizer does.
        add_bos='auto',
        first=0,  # read only the first N training documents; 0 = all
        seed=0,  # seed of the order of documents, and of generated documents
        task=config_dict.create(),  # fields of a task, or of a set
    )
    config.optimizer = config_dict.create(
        # Or another of `training.optimizer.NAMES`, such as 'adamw', 'lion', 'muon'; or one of optax,
        # such as 'optax.lamb', which gets the fields below that it has.
        name='adam',
        options=(),  # of an optimizer of optax: pairs such as ('nesterov', True)
        learning_rate=2.5e-4,  # highest learning rate, after the warm-up
        b1=0.9,  # decay of the mean of gradients
        b2=0.999,  # decay of the mean of squared gradients, also of 'rmsprop'
        eps=1e-8,  # added to the denominator
        weight_decay=0.0,  # per step, times the learning rate
        momentum=0.0,  # momentum of 'sgd' and 'nesterov'; of 'muon', 0 = 0.95
        schedule='cosine',  # of the learning rate: or 'linear', 'inverse_sqrt', 'constant'
        warmup_steps=0,  # updates in which the learning rate rises from 0
        final_fraction=0.0,  # last learning rate / highest
        clip_norm=0.25,  # largest norm of the gradient; 0 = no limit
        clip_each=False,  # clip the gradient of each parameter by itself
        accumulate_steps=1,  # steps whose gradients are averaged for one update
        # Parameter groups: (path pattern, rate multiplier, weight decay[, another optimizer]); the
        # first that matches counts, and a rate of 0 freezes.
        groups=(),
    )
    config.train = config_dict.create(
        num_steps=1000,  # training steps of the whole run
        num_lanes=8,  # lanes: rows of the batch, texts read in parallel
        segment_length=128,  # tokens read at a time
        segments_per_step=1,  # segments of a training step; gradients go no further back
        # A document begins inside of a segment, where the one before ends; else the rest is padding. For
        # models that reset their memories inside of a segment, such as 'delta_net' in all layers.
        packed=False,
        gradient_segments=0,  # only the last N segments of a step have a gradient; 0 = all
        remat=False,  # keep only the memories between segments for the backward pass; see model.remat
        log_every=50,  # steps between lines of metrics; 0 = only at the end
        evaluate_every=EVERY,  # steps between scores of the validation split; 0 = only at the end
        seed=0,  # seed of initial parameters, dropout and other draws
        # Generator of a step's draws, such as dropout: 'threefry', or 'rbg', that of the hardware:
        # fewer cycles on TPUs, but other numbers on another mesh.
        prng='threefry',
        # Initial parameters, where shapes agree: workdir of another run, or the folder of a
        # Hugging Face model or its name on the hub.
        start_from='',
        # Lets a run resume with another num_lanes: memories are reset and the lanes begin new documents.
        restart_lanes=False,
        # Average of the parameters over updates (EMA), which is then what is scored, read and exported:
        # the share of the old average that an update keeps, such as 0.999; 0 = no average.
        ema_decay=0.0,
        patience=0,  # validations in a row without a better one after which the run ends; 0 = never
        max_bad_steps=20,  # non-finite steps in a row before the run ends
        z_loss=0.0,  # weight of the squared log of the softmax's denominator
        loss_weights=config_dict.create(),  # auxiliary losses of memories, by name
    )
    config.evaluate = config_dict.create(
        segment_length=0,  # the training segment length, unless set
        num_lanes=8,  # lanes: texts read in parallel
        context=0,  # overlapping windows, without memory: tokens read again, not scored
        max_segments=0,  # validation in training: segments per lane (with a document in each); 0 = all
        max_test_segments=0,  # final test and --mode=evaluate: segments per lane; 0 = all
        model=config_dict.create(),  # overrides of config.model, such as memory lengths
    )
    config.generate = config_dict.create(
        length=500,  # tokens to generate
        temperature=1.0,  # logits are divided by it; 0 = always the most likely token
        top_k=0,  # draw from the k most likely tokens; 0 = from all
        top_p=0.95,  # draw from the most likely tokens of this total probability; 1 = from all
        seed=0,  # seed of the drawn tokens
        sample_length=200,  # tokens of the sample at the end of training; 0 = none
        beams=0,  # beam search with N hypotheses instead of drawing; 0 = draw
        length_penalty=1.0,  # as in config.translate
    )
    config.translate = config_dict.create(
        beams=5,  # hypotheses of beam search
        length_penalty=1.0,  # score of a hypothesis: log-probability / length ** length_penalty
        num_lanes=16,  # sentences translated at a time
        max_sentences=0,  # sentences of a split for BLEU; 0 = all
    )
    config.checkpoint = config_dict.create(
        # Steps between checkpoints; at evaluations, unless set, or 1,000 where there are none. 0 = only
        # at the end, and when a signal stops the run.
        every=0,
        keep=3,  # number of newest checkpoints that are kept; at least two
        at=0,  # resume from this step and move later checkpoints aside, once; 0 = the newest
        # Number of the validation, such as 'bits_per_byte', 'loss' or 'accuracy', by which the best
        # checkpoint is kept as well; test and all modes then read that one. '' = the newest.
        best='',
        # Resume with other data than the newest checkpoint's, from the first document of the new data.
        accept_other_data=False,
    )
    # Devices along each axis; -1 = all that are left.
    config.mesh = config_dict.create(
        data=-1,  # divides the lanes
        fsdp=1,  # divides the lanes, and parameters by d_model
        tensor=1,  # divides heads, feed-forward width and vocabulary
        memory=1,  # divides the entries of memories
    )
    config.notes = ()  # what a recipe had to change from its paper, and why
    for name, field, other, source, instead in FOLLOWS:
        config[name][field] = followed(config, other, source, instead)
    for name in subjects:
        add(config, name)
    return config


def size(config: Any, layers: int, width: int, heads: int, feed_forward: int) -> None:
    """Sets the sizes of the model; `head_dim` is `width / heads`."""
    model = config.model
    model.num_layers, model.num_heads = layers, heads
    model.d_model = model.d_embed = width
    model.head_dim = width // heads
    model.d_feed_forward = feed_forward


def two_cores(config: Any, *, steps: int, lanes: int, segment: int) -> None:
    """Settings common to all `tiny` variants: float32, no dropout, Adam, three evaluations.

    Kernels start with a standard deviation of d_model**-0.5: a paper's .02 suits its width, and at the
    width of a small model would make all positions larger than the tokens and all scores equal.
    """
    model, train = config.model, config.train
    model.dtype = 'float32'
    model.dropout = model.attention_dropout = model.layer_drop = 0.0
    model.init, model.init_std, model.scale_residual_init = 'normal', 0.0, False
    config.optimizer.name, config.optimizer.learning_rate = 'adam', 2e-3
    config.optimizer.schedule, config.optimizer.warmup_steps = 'cosine', 50
    train.num_steps, train.num_lanes, train.segment_length = steps, lanes, segment
    train.log_every = 20
    train.evaluate_every = max(steps // 3, 1)


def read_bytes(config: Any) -> None:
    """Reads bytes instead of a learned vocabulary."""
    config.model.vocab_size = 257
    config.data.tokenizer = dict(kind='bytes', path='', size=0)


def stack(model: Any, num_layers: int, attention: str, feed_forward: str = 'dense') -> None:
    """Sets `num_layers` equal layers."""
    model.num_layers = num_layers
    model.attention = (attention,) * num_layers
    model.feed_forward = (feed_forward,) * num_layers

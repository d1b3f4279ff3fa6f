from longmem_jax.errors import command_needs

command_needs('train', 'ml_collections')

"""Configurations of earlier versions lack fields that were added after."""

import json

from configs import quickstart
from longmem_jax.config.earlier import completed, completed_config


def saved():
    config = quickstart.get_config('tiny,memory=memorizing')
    return json.loads(json.dumps(config.to_dict()))


def test_fields_that_are_missing_have_their_defaults():
    now, then = saved(), saved()
    del then['model']['parallel_residual'], then['model']['memorizing']['normalized']
    del then['train']['gradient_segments']
    assert json.loads(json.dumps(completed_config(then))) == now
    assert completed(then['model'], now['model']) == now['model']
    assert 'parallel_residual' not in then['model']


def test_fields_that_are_there_stay():
    now, then = saved(), saved()
    then['model']['d_model'], then['model']['lora'] = 7, {'rank': 3}
    found = completed(then['model'], now['model'])
    assert found['d_model'] == 7 and found['lora'] == {**now['model']['lora'], 'rank': 3}


def test_a_field_without_a_default_stays_missing():
    assert completed({}, {'of_no_config': 1}) == {}

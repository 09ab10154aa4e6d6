"""Names of phases, each once, with what it does; given by hand, from scripts and frameworks."""

from __future__ import annotations

import pytest

from llmtop.naming.phase_names import Role, computes, is_numbered_step, is_optimizer_step, role_of, without_number

ROLES: dict[Role, str] = {
    "step": """
        step | train_step | training_step | ProfilerStep#12 | iteration 12 | iter_3 | Step 12 | batch 7 |
        TrainStep | global_step | [pl][profile]run_training_batch
    """,
    "input": """
        dataload | data_loading | DataLoader | dataloader | next_batch | load batch | load_batch | fetch |
        data | [pl][profile][_TrainingEpochLoop].train_dataloader_next | read_batch | get_batch | getBatch |
        prefetch | fetch_data | batch_fetch | wait_for_batch | wait_batch | input | input_pipeline |
        data_wait | data time | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ | load data |
        loader | next batch | collate | read_data | data_fetch | prepare_batch | sample_batch | tokenize |
        train_data | next_microbatch | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ | augment
        | inputs
    """,
    "h2d": """
        h2d | H2D | host_to_device | to_device | to_gpu | batch_to_device | move_batch | copy_to_gpu |
        transfer_batch | copy batch to device | data_to_device | toDevice | copy_inputs | host2device |
        transfer_batch_to_device | [pl][profile]batch_to_device
    """,
    "comm": """
        communication | comm | allreduce | all_reduce | all-gather | reduce_scatter | broadcast | nccl |
        barrier | grad_sync | sync_grads | sync_gradients | all_to_all | nccl:all_reduce | alltoall |
        allreduce_grads | ## all2all_data:lengths ## | ## wait_sparse_data_dist ## | output_dist
    """,
    "sync": """
        sync | synchronize | item | loss.item | log | logging | log_metrics | metrics | cuda_synchronize |
        d2h | to_cpu | wait | torch.cuda.synchronize | print_loss
    """,
    "optimizer": """
        optimizer | optim | opt_step | optimizer_step | optimizer.step#AdamW.step | zero_grad | update |
        Optimizer.zero_grad#SGD.zero_grad | clip_grad_norm | clip_grad | weight_update | zerograd |
        grad_scaler
    """,
    "backward": """
        backward | bwd | backprop | backward_pass | grad | autograd | loss.backward | compute_grads
    """,
    "compute": """
        forward | fwd | model | loss | attention | mlp | layer.3 | block_12 | compute_loss | encoder |
        batch_norm | decode | prefill | generate | input_projection | batch_norm_layer |
        data_parallel_forward | model_forward | input_embedding
    """,
    "other": """
        database | metadata | load_state_dict | upload | commit | data_parallel | save | checkpoint |
        evaluate | load_checkpoint | download | foo | async | asynchronous | community
    """,
}


@pytest.mark.parametrize(
    ("name", "role"),
    [(" ".join(name.split()), role) for role, names in ROLES.items() for name in names.split("|")],
)
def test_a_name_has_one_role(name: str, role: Role) -> None:
    assert role_of(name) == role
    assert role_of(f"forward/{name}") == role, "a nested one by its last part"


def test_the_count_at_its_end_is_no_part_of_a_name() -> None:
    assert without_number("ProfilerStep#7") == "ProfilerStep"
    assert without_number("iteration (12)") == "iteration"
    assert without_number("7") == "7"


def test_whole_optimizer_steps_are_told_from_what_they_consist_of() -> None:
    for name in ("optimizer.step#AdamW.step", "optimizer", "optim_step", "opt step"):
        assert is_optimizer_step(name)
    for name in ("optimizer/clip", "Optimizer.zero_grad#SGD.zero_grad", "optimizer_state"):
        assert not is_optimizer_step(name)


def test_work_of_the_step_itself() -> None:
    assert [role for role in ROLES if computes(role)] == ["step", "optimizer", "backward", "compute"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("Step 12", True),
        ("iter_3", True),
        ("decode step 4", True),
        ("epoch_0_step_12", True),
        ("Warm-up Step 3", False),
        ("warmup_step_2", False),
        ("Warmup iter 3", False),
        ("optimizer step 3", False),
        ("load batch 3", False),
        ("micro_batch_3", False),
        ("BatchNorm 2", False),
        ("layer 7", False),
        ("step", False),
    ],
)
def test_a_numbered_range_counts_steps(name: str, counts: bool) -> None:
    assert is_numbered_step(name) is counts


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("## Call CompiledFxGraph fn2ys7mzsurrvf2kfjrvredgo3x3sr6oqp763tp7wny ##", "compiled graph"),
        ("## Call CompiledFxGraph f7zrjpguhsbr4jpoia6msfzrfn6i3zkb5nvnu24jkpu ##", "compiled graph"),
        ("Torch-Compiled Region: 0/0", "compiled region"),
        ("Torch-Compiled Region: 12/3_1", "compiled region"),
        ("Torch-Compiled forward", "Torch-Compiled forward"),
    ],
)
def test_what_was_compiled_has_one_short_name_in_every_run(name: str, short: str) -> None:
    assert without_number(name) == short

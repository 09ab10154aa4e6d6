"""What `make test` leaves to `make test-all`, and the test of `make test` that still catches the same fault.

A matrix is thinned to some of its parameters, which are that test; a single test names its neighbour. A few dear
ones have none, and say what CI alone finds. Programs of `tests/foreign` may say it themselves, in their header.
"""

from __future__ import annotations

THINNED: dict[str, tuple[str, ...]] = {
    "test_no_screen_writes_an_escape_sequence_of_its_data": ("dark", "ascii"),
    "test_every_key_acts_or_is_answered": ("main", "captures"),
    "test_nor_does_the_pane_of_a_cluster": ("ascii",),
    "test_one_process_begins_at_the_step_that_is_named": ("by ones",),
    "test_it_has_attached_is_said_once": ("workers",),
    "test_a_quiet_run_says_nothing": ("not attached-options0-variables0",),
    "test_an_evaluation_is_a_phase_of_the_step_that_follows": ("a loader-after", "averaged weights-before"),
    "test_a_training_that_nsys_collects_from_ends_as_it_would_without": ("raise",),
    "test_a_training_on_a_gpu_pauses_for_the_versions_that_harm_it": (
        "2025.3.1.90-1-True-options0-2",
        "2024.1.1.1-1-False-options4-2",
    ),
    "test_ranks_that_wait_for_each_other_pause_after_the_same_step": ("20-length0",),
    "test_killing_llmtop_at_any_stage_leaves_the_training_running_and_not_collected": ("record",),
    "test_a_cancel_leaves_nothing_and_the_training_running": ("record",),
    "test_killing_llmtop_leaves_the_training_running": ("record",),
    "test_it_dies_with_the_monitor_however_that_dies": (
        "2-well",
        "9-inside a call that hangs",
    ),
    "test_at_a_long_interval_values_are_of_the_instant_that_they_are_stamped_with": ("0.4",),
    "test_any_work_that_is_seen_is_life_and_a_hang_after_it_is_none": ("hooks, a DataLoader",),
    "test_the_parts_of_a_step_are_the_step": ("tuning",),
    "test_the_text_fits_the_screen_and_has_no_percent_of_next_to_nothing": ("tuning",),
    "test_a_training_under_two_profilers_has_changed_nothing": ("tuning",),
    "test_a_flipped_bit_costs_one_part_at_most": ("61",),
    "test_calls_a_step": ("h200",),
    "test_no_figure_is_impossible": ("h200",),
    "test_devices": ("h200",),
    "test_steps": ("h200",),
    "test_phases": ("h200",),
    "test_it_does_not_notice": ("numpy_only",),
    "test_what_the_monitor_says_is_judged": ("steps = 7-the last step is number 6; right is 7",),
    "test_steps_and_their_parts_are_as_long_as_the_iterations": ("evaluation every N",),
    "test_a_loop_over_a_model_has_its_forwards_as_steps_from_start_to_start": (
        "eval and no_grad",
        "below what is evaluated",
    ),
    "test_whatever_of_ours_raises_the_training_is_the_same": ("hooks-24",),
    "test_a_call_that_is_any_descriptor_is_called_as_one": ("staticmethod",),
    "test_a_module_that_merely_lives_in_the_process_harms_nothing": (
        "parameters() that returns groups",
        "attributes that raise",
    ),
    "test_a_killed_nsys_leaves_the_training_alone": ("collecting",),
    "test_a_captured_training_ends_as_it_would_without": ("500 steps asked for",),
    "test_an_import_in_the_server_thread_harms_no_end": (
        "llmtop.instrument.control.self_capture-within-0.3",
        "llmtop.instrument.control.op_ranges-before-2",
        "llmtop.instrument.control.pause-within-1",
    ),
    "test_every_end_within_an_import_is_as_without_llmtop": ("by hand-SIGINT", "by hand-raise", "run-sys.exit"),
    "test_closed_and_full_streams_are_the_commands_own": (
        "run-2>&-",
        "run-<&- >&- 2>&-",
        "run --nsys->&-",
        "run --nsys-2>/dev/full",
    ),
    "test_what_has_to_be_said_of_a_command_does_not_keep_it_from_starting": ("run-2>/dev/full", "run-2>&-"),
    "test_a_command_that_is_not_there_exits_as_ever_without_a_stderr": ("run-2>&-",),
    "test_no_socket_stands_in_for_a_closed_stream": ("2>&-",),
    "test_the_pane_shows_eight_of_them": ("200x50", "80x24"),
    "test_marks_end_without_a_word": ("hangs up",),
    "test_steps_that_a_signal_s_handler_tears_apart_end_no_recording": ("KeyboardInterrupt",),
    "test_a_monitor_that_comes_after_the_step_is_told_the_truth": ("back",),
    "test_a_stall_is_as_old_as_it_is_whatever_the_wall_clock_says": ("-7200.0",),
    "test_a_training_goes_on_being_told_over_a_step_of_the_wall_clock": ("back",),
    "test_a_fault_gives_the_terminal_back_before_anybody_learns_of_it": ("11", "6"),
    "test_an_error_nobody_expected_is_one_sentence_a_log_and_70": (
        "a thread",
        "the app",
        "the end",
    ),
    "test_in_bash_it_can_be_stopped_put_in_the_background_and_fetched_again": ("ctrl+z", "19"),
    "test_json_gives_a_line_as_soon_as_it_is_known_and_ends_cleanly": ("2", "15"),
    "test_during_an_attack_its_neighbours_are_served_and_after_it_who_is_new": (
        "captures",
        "held_connections",
        "nested_frames",
        "pauses",
    ),
    "test_a_gpu_that_is_slowed_down_is_told_with_the_cause": ("136-power brake of the power supply",),
    "test_equal_ranks_are_never_accused": ("2-host-ddp",),
    "test_of_two_hundred_healthy_series_resampled_in_blocks_none_is_slower": ("gpu",),
    "test_an_output_that_is_full_is_one_sentence": ("--json", "--once", "doctor", "--help"),
    "test_what_can_be_understood_is": (
        "total_steps='10k', warmup_steps=decimal.Decimal(3)-told3",
        "params='350M'-told5",
        "flops_per_token='1e9', params='x'-told9",
        "dtype=torch.bfloat16-told10",
        "dtype=numpy.dtype('float32')-told14",
        "dtype='BF16-mixed'-told15",
    ),
    "test_what_cannot_is_left_out_with_one_warning_and_the_rest_is_kept": (
        "total_steps=10**5000",
        "total_steps=float('nan')",
        "total_steps=True",
        "total_steps='many'",
        "total_steps=Raises()",
        "params=1e308",
        "flops_per_token=object()",
        "dtype=Raises()",
    ),
    "test_a_host_that_computes_or_sleeps_does_not_wait_for_a_gpu": ("compute(0.02)",),
    "test_a_call_that_waits_is_told_with_its_share_in_whatever_phase": (
        "loss = device.item(0.02)-device.item(0.02)",
    ),
    "test_collections_of_garbage_are_told": ("gc.collect()-train.py:14 gc.collect()",),
    "test_what_is_kept_is_of_the_error_that_ended_the_process": ("5-False",),
    "test_a_run_is_called_by_what_all_its_ranks_have_in_common": (
        "an address alone",
        "torchrun --standalone",
        "torchrun under SLURM",
        "mpirun",
    ),
    "test_exit_codes_come_back": ("run-3", "run-255", "run --nsys-3"),
    "test_an_error_that_was_answered_leaves_nothing": ("catches-0",),
    "test_fail_over_takes_percent_with_and_without_the_sign": ("5%",),
    "test_an_error_that_ends_the_process_leaves_a_snapshot_and_a_line": ("wraps",),
    "test_who_waits_for_a_person_is_paused_and_no_step_goes_across": ("breakpoint in a phase", "prompt"),
    "test_the_planted_rank_is_named_within_thirty_steps": (
        "slow clock-2-gpu-fsdp",
        "extra compute-8-gpu-ddp",
        "memory-bound neighbour-2-host-ddp",
    ),
    "test_the_rank_that_comes_last_is_named": ("fsdp2",),
    "test_sampling_takes_no_hook_and_changes_no_bit": ("power",),
    "test_any_snapshot_is_painted_at_any_size_in_exactly_its_place": ("dark", "ascii"),
    "test_it_ends_with_0_and_takes_its_entry_along": ("2", "15"),
    "test_what_is_planted_among_64_nodes_is_named": ("rules",),
    "test_what_a_loader_waits_for_is_named": ("decode-4-decode-PIL",),
    "test_functions_of_python_are_seen_where_it_was_started_so": ("3.12",),
    "test_that_it_cannot_is_said_once_with_the_reason": ("no step",),
    "test_the_gpu_with_the_alert_differs_in_text_from_its_neighbours": (
        "size0-dark",
        "size1-ascii",
        "size2-mono",
        "size3-16 colors",
        "size4-ascii",
        "size5-dark",
    ),
    "test_the_longest_reasons_are_whole_beside_a_hundred_others": (
        "size0-gpu_error-the driver has not answered for 12 s",
        "size0-low_power_full_util-memory controller 100% busy",
        r"size0-slower-forward/atte\u2026ntion_0001 110 ms \u2192 160 ms",
        "size0-throttled-power brake of the power supply",
        "size0-hung_collective-rank 127 has not called AllReduce 40123",
        "size0-memory_pressure-12 allocations failed or retried",
        "size0-sync_bound-waits for the GPU 100% of a step",
        "size1-hung_collective-rank 127 has not called AllReduce 40123",
        "size2-gpu_error-the driver has not answered for 12 s",
        r"size3-slower-forward/atte\u2026ntion_0001 110 ms \u2192 160 ms",
        "size4-hung_collective-rank 127 has not called AllReduce 40123",
        "size5-throttled-power brake of the power supply",
    ),
    "test_what_a_handler_raises_while_llmtop_attaches_reaches_the_script": (
        "TimeoutError-a function",
        "TimeoutError-any arguments",
        "TimeoutError-a method",
        "TimeoutError-an object",
        "TimeoutError-a partial",
        "TimeoutError-gone when it raises",
        "Exception-a function",
        "KeyError-a function",
    ),
    "test_from_the_alert_to_a_compared_fix_in_eight_keys": ("size0", "size3"),
    "test_it_ends_on_what_to_do_next": ("size0", "size3"),
    "test_u_opens_what_lies_beside_a_capture": ("size0", "size3"),
    "test_a_signal_that_would_kill_ends_it_with_its_number": ("3", "10"),
    "test_an_output_that_is_closed_is_one_sentence": ("--once",),
    "test_a_reader_that_has_gone_is_no_error": ("--once",),
    "test_an_output_that_lacks_a_character_ends_nothing": ("--once",),
    "test_a_signal_that_means_nothing_changes_nothing": ("28",),
    "test_what_is_said_after_a_crash_is_shown_though_the_screen_died_within_a_sequence": ("7-a title",),
    "test_a_stalled_terminal_gets_its_settings_at_once_and_the_rest_when_it_reads_again": ("15",),
    "test_a_key_pressed_before_it_has_come_back_is_not_lost": ("19",),
    "test_so_it_is_for_every_command": ("--once-",),
    "test_what_is_planted_is_found": (
        "stdout",
        "main: a value",
    ),
    "test_only_threads_that_the_header_names_may_come_and_go": ("Poo-False-True",),
    "test_a_damaged_capture_json_tells_nothing_and_stops_nothing": ("{",),
    "test_what_goes_too_far_is_told_why_and_hung_up_on": (
        "sent0-more than 200 messages",
        "sent4-nested too deeply",
    ),
    "test_where_the_directory_cannot_be_used_the_training_says_so_once_and_runs": ("world-writable",),
    "test_one_whose_memory_is_damaged_is_replaced": (r"\xff\xff\xff\xff",),
    "test_what_nsys_does_late_is_undone": ("stop hangs",),
    "test_a_report_that_cannot_be_exported_is_kept_and_the_way_out_told": (
        r"export on a full disk-nsys export failed \\(database or disk is full\\); by hand",
    ),
    "test_a_cancel_at_any_stage_leaves_nothing": ("record",),
    "test_a_capture_that_is_given_up_is_stopped_in_a_pause": ("record-2",),
    "test_killing_llmtop_lets_the_training_go_on_and_still_stops_nsys_in_a_pause": ("record-2",),
    "test_a_client_that_fails_is_one_sentence_and_nothing_is_kept": ("die-ended by itself (exit code -6)",),
    "test_it_says_what_torch_s_own_client_says_and_the_server_prints_nothing": ("uv",),
}
"""By the name of the test, wherever it stands, the parameters that `make test` runs."""

LEFT_OUT: dict[str, str] = {
    "test_generate_within_a_training_stays_its_evaluation": (
        "test_an_evaluation_is_a_phase_of_the_step_that_follows"
    ),
    "test_accelerate_tells_what_the_script_logs_with_it": "test_a_trainer_tells_its_steps_and_what_it_logs",
    "test_one_monitor_at_a_time": "test_marks_end_without_a_word",
    "test_leaving_the_monitor_calls_the_capture_off": "test_a_capture_under_way_is_called_off",
    "test_a_report_of_before_is_not_taken_for_one_of_now": (
        "test_a_run_says_what_it_does_and_reads_what_was_written"
    ),
    "test_a_stopped_exporter_holds_no_training_up": (
        "test_garbage_and_many_connections_leave_the_training_its_steps"
    ),
    "test_a_rank_that_is_learned_late_changes_the_job": (
        "test_ranks_that_only_torch_knows_of_are_one_job_of_the_script_that_spawned_them"
    ),
    "test_a_recording_over_a_clock_that_is_set_back_is_as_long_as_it_took": (
        "test_a_recording_for_some_seconds_ends_though_the_clock_is_set_back"
    ),
    "test_a_script_that_answers_first_and_then_trains_is_a_training": (
        "test_a_script_that_evaluates_first_and_then_trains_is_a_training"
    ),
    "test_installed_with_foreign_packages_in_the_folder_and_on_pythonpath": (
        "test_from_a_checkout_with_foreign_packages_in_the_folder_and_on_pythonpath"
    ),
    "test_no_file_has_a_secret": ("test_variables_are_kept_by_a_list_of_names_alone"),
    "test_work_of_another_thread_is_no_life_of_the_one_that_trains": (
        "test_a_training_that_hangs_without_any_work_gives_no_sign"
    ),
    "test_ranges_nested_a_hundred_thousand_deep": ("test_a_report_of_nested_evidence"),
    "test_a_training_in_a_second_thread_ends_too": ("test_a_captured_training_ends_as_it_would_without"),
    "test_the_same_with_the_history_of_the_allocator": ("test_a_captured_training_ends_as_it_would_without"),
    "test_the_same_below_llmtop_run": ("test_a_captured_training_ends_as_it_would_without"),
    "test_llmtop_capture_says_that_the_training_has_ended": ("test_a_captured_training_ends_as_it_would_without"),
    "test_an_alert_of_the_live_rules_fires_an_armed_capture": (
        "test_an_armed_capture_fires_and_prints_its_result"
    ),
    "test_a_name_of_an_event_is_not_taken_for_the_rank_that_is_missing": (
        "test_the_rank_is_in_the_name_and_in_the_file"
    ),
    "test_a_long_run_is_drawn_in_parts": (
        "test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found"
    ),
    "test_a_callback_is_copied_and_a_trainer_that_raised_is_forgotten": (
        "test_a_trainer_tells_its_steps_and_what_it_logs"
    ),
    "test_no_auto_leaves_the_training_as_it_is": ("test_who_is_switched_off_listens_to_no_forward_pass"),
    "test_a_child_that_is_forked_while_its_parent_is_recorded_stops_nothing": (
        "test_a_forked_child_inherits_nothing_and_takes_nothing_away"
    ),
    "test_where_it_cannot_be_written_the_error_is_as_ever": (
        "test_an_error_that_ends_the_process_leaves_a_snapshot_and_a_line"
    ),
    "test_a_killed_llmtop_leaves_nothing_marked": ("test_marks_end_without_a_word"),
    "test_what_a_version_does_to_trainings_is_said_before_the_key_is_pressed": (
        "test_a_training_on_a_gpu_pauses_for_the_versions_that_harm_it"
    ),
    "test_a_killed_host_does_not_harm_the_training": ("test_killing_llmtop_leaves_the_training_running"),
    "test_a_request_that_names_no_folder_of_the_users_writes_beside_the_training_and_is_cleared": (
        "test_one_process_begins_at_the_step_that_is_named"
    ),
    "test_no_key_is_answered_with_silence": "test_no_key_of_the_main_screen_is_answered_with_silence",
    "test_prefill_and_decode_are_phases_of_a_capture": "test_each_request_is_seen_from_its_call_to_its_return",
    "test_once_and_json_say_the_same_without_a_screen": "test_what_is_planted_among_64_nodes_is_named",
    "test_the_log_is_byte_for_byte_what_it_is_without_llmtop": (
        "test_it_says_what_torch_s_own_client_says_and_the_server_prints_nothing"
    ),
    "test_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found": (
        "test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found"
    ),
    "test_the_values_of_a_knob_are_run_in_turns_and_ranked": (
        "test_values_that_noise_cannot_tell_apart_are_not_ranked_in_words"
    ),
    "test_two_commands_are_run_in_turns_and_compared_as_pairs": "test_drift_that_both_of_a_pair_share_drops_out",
    "test_five_runs_are_made_where_runs_are_compared_and_a_failed_one_is_no_decision": (
        "test_runs_are_held_to_a_baseline"
    ),
    "test_the_script_s_own_stderr_has_nothing_of_it": "test_it_has_attached_is_said_once",
    "test_a_directory_that_cannot_be_used_is_the_one_reason": "test_that_it_cannot_is_said_once_with_the_reason",
    "test_victoriametrics_tells_the_same": "test_what_is_planted_among_64_nodes_is_named",
    "test_a_thousand_labels_more_and_one_run_alone": "test_an_odd_answer_is_a_sentence",
    "test_a_slow_disk_is_named_by_the_state_of_the_threads": (
        "test_where_the_kernel_says_disk_the_library_is_not_blamed"
    ),
    "test_a_slow_network_is_named": "test_what_a_loader_waits_for_is_named",
    "test_the_scripts_own_code_is_told_by_its_line_and_more_workers_only_with_cpus_for_them": (
        "test_more_workers_are_advised_only_where_there_is_a_cpu_for_one"
    ),
    "test_looks_of_the_screen_and_of_the_alert_say_the_same_and_leave_nothing": (
        "test_what_a_loader_waits_for_is_named"
    ),
    "test_all_that_are_asked_begin_at_that_step_and_no_other_does": (
        "test_one_process_begins_at_the_step_that_is_named"
    ),
    "test_a_second_request_is_told_and_one_that_was_killed_leaves_nothing": (
        "test_one_process_begins_at_the_step_that_is_named"
    ),
    "test_by_default_it_is_of_the_rank_that_the_others_wait_for_and_of_some_beside_it": (
        "test_a_rank_that_waits_as_most_do"
    ),
    "test_a_dead_rank_is_told_and_not_waited_for": ("test_one_process_begins_at_the_step_that_is_named"),
    "test_c_again_captures_where_a_rank_of_the_job_is_and_the_server_may_stand_in_the_configuration": (
        "test_c_says_the_command_that_captures_the_accused_and_where_to_call_it"
    ),
    "test_a_rank_that_does_not_answer_nccl_is_named_on_the_pane_of_the_cluster": (
        "test_one_who_is_named_by_counts_and_by_nccl_is_told_once_and_two_nodes_say_the_same_once"
    ),
    "test_a_baseline_is_kept_and_equal_slower_and_noisy_runs_are_held_to_it": "test_runs_are_held_to_a_baseline",
    "test_an_interval_holds_what_was_planted_about_as_often_as_it_says": (
        "test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found"
    ),
    "test_equal_values_are_seldom_called_different": (
        "test_values_that_noise_cannot_tell_apart_are_not_ranked_in_words"
    ),
    "test_the_plain_bootstrap_is_too_narrow_for_five_runs": (
        "test_a_few_equal_benches_raise_no_alarm_and_a_planted_slowdown_is_found"
    ),
    "test_a_bare_run_says_what_being_attached_costs": "test_each_run_is_measured_after_its_warm_up_ended_and_kept",
    "test_a_batch_job_under_llmtop_run_is_watched_from_the_node": (
        "test_a_training_in_a_pid_namespace_is_seen_through_a_shared_socket_folder"
    ),
    "test_the_tasks_of_srun_are_ranks_of_one_job_and_are_watched_from_within_it": (
        "test_a_training_in_a_pid_namespace_is_seen_through_a_shared_socket_folder"
    ),
    "test_assisted_decoding_is_one_request_for_all_its_drafts": (
        "test_each_request_is_seen_from_its_call_to_its_return"
    ),
    "test_an_encoder_and_decoder_counts_what_the_decoder_says": (
        "test_each_request_is_seen_from_its_call_to_its_return"
    ),
    "test_every_operator_lies_in_a_step_that_the_window_began": "test_marks_begin_and_end_with_a_step",
    "test_a_pause_ends_and_begins_with_them": ("test_operators_with_sizes_within_the_window_and_none_after_it"),
    "test_a_capture_that_is_given_up_leaves_nothing_marked": "test_marks_end_without_a_word",
    "test_a_killed_nsys_leaves_nothing_marked": "test_marks_end_without_a_word",
    "test_a_script_with_a_profiler_is_left_alone": "test_it_is_refused_before_nsys_starts",
    "test_calls_by_hand_take_over": "test_what_is_no_whole_request_is_not_counted_and_those_beside_it_are",
    "test_gradients_by_hand_after_forwards_make_it_a_training": (
        "test_a_script_that_evaluates_first_and_then_trains_is_a_training"
    ),
    "test_a_trainer_that_only_evaluates_is_no_training": (
        "test_an_evaluation_that_is_a_program_waits_for_its_batches"
    ),
    "test_decoding_by_hand_without_a_cache_is_one_too": (
        "test_decoding_by_hand_with_a_cache_is_a_request_a_prompt"
    ),
    "test_a_captured_training_ends_as_ever": "test_a_captured_training_ends_as_it_would_without",
    "test_a_full_disk_is_told_and_no_half_file_is_left": (
        "test_an_unwritable_path_is_told_and_the_training_runs_on"
    ),
    "test_a_step_that_never_ends_is_not_waited_for_long": (
        "test_a_training_that_cannot_be_paused_is_not_captured_unless_told_to"
    ),
    "test_of_two_that_do_not_run_in_step_none_waits_long_for_the_other": (
        "test_ranks_that_wait_for_each_other_pause_after_the_same_step"
    ),
    "test_what_a_killed_llmtop_left_collecting_is_stopped_in_a_pause": (
        "test_what_a_killed_llmtop_left_is_stopped_before_the_next_capture_pauses"
    ),
    "test_the_screen_lives_through_random_bytes_and_q_still_quits": (
        "test_odd_bytes_end_nothing_and_the_next_key_works"
    ),
    "test_a_training_that_ends_before_its_trace_is_written": (
        "test_a_training_that_nsys_collects_from_ends_as_it_would_without"
    ),
    "test_workers_and_spawned_processes_are_not_taken_for_trainings": ("test_it_does_not_notice"),
    "test_the_exit_codes_are_those_of_the_same_training_without_llmtop": (
        "test_a_captured_training_ends_as_it_would_without"
    ),
    "test_seven_processes_of_three_jobs_that_know_nothing_of_llmtop": (
        "test_torchrun_s_two_ranks_beside_a_process_of_its_own"
    ),
    "test_sixty_four_trainings_attach_at_once": ("test_many_processes_at_once"),
    "test_a_trainer_publishes_its_steps": ("test_a_trainer_tells_its_steps_and_what_it_logs"),
    "test_a_shell_s_trainings_say_it_once_and_the_next_run_tidies_up": ("test_it_has_attached_is_said_once"),
    "test_a_million_events_make_a_page_under_two_megabytes": (
        "test_what_is_too_dense_is_joined_and_nothing_is_lost"
    ),
    "test_torchrun_with_two_workers_ends_cleanly_on_ctrl_c": (
        "test_a_signal_to_what_was_started_is_a_signal_to_the_training"
    ),
    "test_a_training_that_kineto_records_ends_as_it_would_without": (
        "test_a_training_that_nsys_collects_from_ends_as_it_would_without"
    ),
    "test_a_training_that_torchrun_started_without_llmtop_has_its_rank_from_there": (
        "test_the_rank_is_in_the_name_and_in_the_file"
    ),
    "test_whatever_the_server_does_is_said_and_the_keys_go_on": "test_an_odd_answer_is_a_sentence",
    "test_nobody_is_accused_among_equal_ranks": "test_equal_ranks_are_never_accused",
    "test_a_monitor_sees_two_ranks_and_no_launcher": "test_torchrun_s_two_ranks_beside_a_process_of_its_own",
    "test_ranks_say_it_once_for_all": "test_it_has_attached_is_said_once",
    "test_a_rank_that_crashes_is_not_held_up_by_its_capture": (
        "test_a_captured_training_ends_as_it_would_without"
    ),
    "test_the_slow_rank_the_idle_gpu_and_then_the_hung_rank_are_named": (
        "test_what_is_planted_among_64_nodes_is_named"
    ),
}
"""By the test, the one of `make test` that catches its fault as well."""

CI_ALONE: dict[str, tuple[str, ...]] = {
    "frameworks themselves; Trainer's steps are in test_a_trainer_tells_its_steps_and_what_it_logs": (
        "test_a_fit_publishes_its_steps",
        "test_manual_optimisation_under_the_other_name",
        "test_a_profiler_that_was_used_goes_to_spawned_ranks_which_publish_their_steps",
        "test_lightning_tells_its_steps_and_what_it_logs",
        "test_an_accelerated_loop_publishes_its_steps",
    ),
    "torch.compile itself": (
        "test_compiled_code_is_the_same_with_hooks_as_without",
        "test_what_is_compiled_is_compiled_as_without",
        "test_a_compiled_decode_is_timed_and_compiled_as_without",
        "test_a_compiled_model_is_said_to_tell_less",
    ),
    "a real kernel of Jupyter's; test_who_waits_for_a_person_is_paused_and_no_step_goes_across has prompts": (
        "test_those_of_a_notebook_s_cells_too_and_no_step_spans_the_wait_between_them",
        "test_between_the_cells_of_a_notebook_it_is_paused",
    ),
    "what holds over all labelled captures; healthy ones, stragglers and the parts of steps are in make test": (
        "test_at_least_95_in_100_verdicts_are_right",
        "test_lost_kernels_are_told_of_and_only_where_nsys_lost_some",
        "test_a_capture_against_itself_shows_no_difference",
        "test_one_way_is_the_mirror_of_the_other",
        "test_the_shares_of_findings_are_no_more_than_all",
    ),
    "what other code counts in real traces; test_steps and test_calls_a_step do one": (
        "test_counts_and_totals",
        "test_shares_of_whole_steps",
        "test_kernel_sums_by_full_name",
        "test_a_real_run_s_verdict_is_the_same_when_each_rank_calls_its_gpu_0",
        "test_what_graphs_are_made_of_is_not_made_up",
        "test_real_ranks_of_one_machine_have_one_clock",
        "test_real_trainings_whose_host_is_far_ahead",
    ),
    "what shows at random, or only in great numbers; beside each stand cases of its kinds": (
        "test_pieces_that_end_anywhere_give_the_same",
        "test_damaged_files_end_with_a_report_or_a_sentence",
        "test_any_call_may_answer_anything",
        "test_it_stays_quick_on_text_made_to_slow_it_down",
        "test_a_storm_of_sizes_ends_in_the_right_picture",
        "test_the_decoder_takes_ten_thousand_odd_sequences",
        "test_parameters_and_state_of_all_optimizers_are_found",
        "test_ten_thousand_steps_a_second_arrive_or_are_counted_as_lost",
        "test_a_hundred_thousand_steps_take_no_more_memory",
        "test_a_piece_of_a_recording_that_is_larger_than_any_is_left_out_or_read_without_limits",
        "test_twenty_thousand_processes",
        "test_twenty_thousand_devices",
        "test_a_query_without_end_behind_the_name_of_a_table",
    ),
    "files that are hostile to the terminal or none; tests/trace/test_damaged.py has damaged ones": (
        "test_names_of_a_file_reach_no_terminal_as_they_are",
        "test_a_pipe_a_socket_a_device_and_a_loop_are_no_files",
        "test_captures_lists_what_lies_beside_a_broken_one",
        "test_compare_names_the_file_that_is_broken",
    ),
    "what a real nsys does late or wrong; test_a_failure_is_one_sentence_and_the_training_runs_on has some": (
        "test_a_loss_by_another_version_or_of_another_training_bars_nothing",
        "test_raw_data_is_imported_once_more",
        "test_a_loss_is_of_one_training_whatever_number_its_session_has",
        "test_after_a_capture_that_lost_kernels_nsys_is_not_let_near_the_training_again",
        "test_a_report_that_went_elsewhere_is_brought_home",
    ),
    "pauses that fail, and captures whose llmtop is killed; the first of each stands in make test": (
        "test_the_pause_of_one_capture_does_not_set_off_the_next",
        "test_what_is_not_attached_cannot_be_told_to_pause",
        "test_both_at_once_make_no_sense",
        "test_a_training_that_counts_its_steps_oddly_is_not_kept_waiting",
        "test_a_failure_within_the_window_stops_nsys_in_a_pause",
        "test_the_next_capture_stops_what_a_killed_llmtop_left_collecting",
        "test_a_cancelled_capture_leaves_no_folder_and_no_collection",
        "test_a_full_disk_keeps_what_nsys_recorded_and_says_where",
        "test_a_training_that_ends_within_the_window_leaves_its_report",
        "test_a_stopped_training_is_captured_without_waiting_for_ever",
        "test_a_collection_that_somebody_started_by_hand_is_left_alone",
        "test_a_collection_whose_llmtop_and_holder_were_killed_is_found_and_stopped",
        "test_the_session_stays_for_what_the_command_left_in_the_background",
        "test_the_session_goes_when_the_training_has_gone",
        "test_without_step_messages_the_clock_decides_and_an_empty_report_is_told",
        "test_a_training_under_plain_nsys_launch_is_found",
    ),
    "other engines whose tool dies or is given up; one whole capture of each is in make test": (
        "test_a_script_with_a_profiler_of_its_own_is_left_alone",
        "test_a_monitor_that_is_killed_leaves_no_perf",
        "test_a_training_that_dies_within_the_window_leaves_what_there_was",
        "test_a_perf_that_is_killed_is_told_in_a_sentence",
        "test_a_real_bpftrace_tells_what_a_loaders_worker_asks_the_kernel",
        "test_native_frames_are_read_when_asked_for_and_the_training_runs_on",
        "test_a_py_spy_that_is_killed_while_it_holds_the_training_leaves_it_running",
        "test_all_steps_of_its_window_are_judged_whatever_number_was_asked_for",
        "test_which_of_several_servers_it_is_must_be_said",
        "test_a_training_that_is_stopped_is_said_to_be",
        "test_a_profiler_that_the_script_starts_meanwhile_works_and_ends_the_marks",
        "test_a_forked_child_marks_nothing",
        "test_what_the_script_puts_in_the_place_of_a_profilers_beginning_stays",
        "test_a_training_that_ends_within_the_window_ends_as_it_would",
    ),
    "ends of a training beside a profiler; test_a_captured_training_ends_as_it_would_without has one": (
        "test_only_a_file_that_is_being_written_is_waited_for_and_not_for_ever",
        "test_memory_history_is_recorded_only_when_asked_for",
        "test_of_a_history_of_the_script_s_own_only_the_segments_are_kept",
    ),
    "how a bench's command ends; test_each_run_is_measured_after_its_warm_up_ended_and_kept has a bench": (
        "test_a_command_that_ends_before_its_window_fails_the_bench",
        "test_ctrl_c_in_the_middle_ends_the_command_and_keeps_what_there_is",
        "test_a_bench_that_is_killed_says_so_in_its_file_and_leaves_no_training",
        "test_on_a_full_disk_the_command_is_ended_and_the_bench_says_so",
        "test_one_that_ignores_ctrl_c_is_waited_for_and_never_killed_by_itself",
        "test_a_command_that_never_steps_is_told_and_why",
    ),
    "ends of the screen; those by keys, signals, faults and ctrl+z are in make test": (
        "test_sigstop_cannot_be_seen_but_after_it_everything_is_set_and_drawn_anew",
        "test_stopped_and_continued_it_gives_the_terminal_back_and_takes_it_again",
        "test_in_bash_a_crash_is_told_with_its_status_and_the_shell_goes_on",
        "test_a_real_fault_in_a_librarys_thread_does_the_same",
        "test_settings_that_a_shell_made_after_sigkill_are_left_alone",
        "test_without_the_guardian_the_screen_works_and_a_fault_is_only_a_fault",
        "test_a_terminal_that_reads_again_shows_the_present",
        "test_a_terminal_that_stops_reading_neither_grows_nor_outlives_a_signal",
        "test_the_terminal_knows_its_size_better_than_the_environment",
    ),
    "a driver's process that is replaced for other reasons than a crash, and hosts of other kinds": (
        "test_it_holds_no_terminal_no_socket_and_no_file_of_the_monitors",
        "test_one_that_stays_silent_is_replaced",
        "test_a_recording_goes_on",
        "test_the_tries_grow_rarer_while_it_crashes",
        "test_a_second_user_sees_his_own_training_and_root_sees_both",
        "test_the_screen_over_ssh_shows_a_training_of_there",
        "test_a_monitor_in_the_namespace_sees_one_outside_and_says_which_it_is",
        "test_without_t_there_is_no_terminal_and_it_says_so",
        "test_two_users_see_their_own_trainings_and_take_no_place_of_each_other",
        "test_after_setuid_the_end_is_silent_and_root_still_sees_it",
    ),
    "what wheels and environments lack": (
        "test_the_demo_plays_from_the_wheel_and_passes_through_its_alert",
        "test_a_training_in_another_environment_borrows_what_llmtop_needs",
        "test_looking_for_torch_is_not_importing_it",
        "test_a_path_file_that_imports_torch_first_is_no_hindrance",
        "test_it_is_said_at_the_start_and_by_the_doctor",
        "test_it_is_of_its_schema",
        "test_a_server_that_is_killed_is_one_error_of_ours",
    ),
    "attacks on a training; those beside which others are served are in make test": (
        "test_pauses_without_end_are_refused_with_a_word_and_the_training_goes_on",
        "test_who_leaves_its_answers_unread_is_dropped_and_who_reads_hears_them_all",
        "test_requests_that_cost_much_are_looked_at_less_often",
    ),
    "a screen that records, and MIG that comes late; test_record_then_replay has a recording": (
        "test_once_waits_for_mig_instances",
        "test_the_screen_records_too_and_the_recording_plays_on_it",
    ),
    "the shape of the code; make lint holds the floors": (
        "test_no_function_is_longer_than_a_screen",
        "test_no_file_imports_what_imports_it",
        "test_no_engine_s_name_is_looked_at_outside_its_own_folder",
    ),
}
"""By what CI and `make test-all` alone find, the tests that find it. They start programs of others', or take a
second or more of processor time, for what an ordinary change seldom breaks. Whoever changes a folder runs all of
its tests: `pytest -m "slow or not slow" FOLDER`."""

_ALONE = {test: found for found, tests in CI_ALONE.items() for test in tests}


def why_slow(test: str) -> str | None:
    """Why a test is left to `make test-all`; None where `make test` runs it.

    Args:
        test: its name, with its parameters.
    """
    name, _, parameters = test.partition("[")
    if name in LEFT_OUT:
        return f"{LEFT_OUT[name]} catches the same fault"
    if name in _ALONE:
        return f"CI alone finds: {_ALONE[name]}"
    kept = THINNED.get(name)
    if kept is None or parameters[:-1] in kept:
        return None
    return f"make test runs {', '.join(kept)} of this matrix"


def stale(tests: set[str]) -> list[str]:
    """What stands in the tables above and is no test any more, or is named as a neighbour and left out itself.

    Args:
        tests: the names of all tests, with their parameters.
    """
    plain = {test.partition("[")[0] for test in tests}
    wanted = {f"{name}[{one}]" for name, kept in THINNED.items() for one in kept}
    hollow = {neighbour for neighbour in LEFT_OUT.values() if neighbour in LEFT_OUT or neighbour in _ALONE}
    return sorted(wanted - tests) + sorted({*LEFT_OUT, *LEFT_OUT.values(), *_ALONE} - plain) + sorted(hollow)

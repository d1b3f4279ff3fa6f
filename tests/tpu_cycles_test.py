"""Cycles of a compiled TPU program, from the text that the compiler writes."""

import pytest

from experiments import program_bytes, tpu_cycles

# A grid of 10 steps, 2 of them in a turn of the innermost axis: 4 bundles before the loop and 1 after
# it; in it 5 of every step, a region of 1 that begins a turn, a block of 4, of which 2 may be left out.
BUNDLES = """= control target key start
LB: loop body
= control target key end
     0   :  { %s1 = smov.u32 0 } /* Start region 1 */
   0x1   :  { %s2 = smov.u32 0 } /* End region 1 */
   0x2   :  {}
   0x3   :  {}
   0x4 LB: > { %p7_p0 = scmp.ge.s32.totalorder %s9_s1, 2 } /* Start region 9
 several lines */
   0x5   : > { %11 = sbr.rel (%p3_p1) target = $region3 } /* Start region 2 */
   0x6   : > { %v1 = vld [vmem:[%s1] sm:$0xff] } /* End region 2 */
   0x7 PF: > { %12 = sbr.rel (%p4_p2) target = $region5 } /* Start/End empty region 3 */
   0x8   : > { %13 = sbr.rel (%p5_p3) target = $region8 } /* Start region 7 */
   0x9   : > {}
   0xa   : > {} /* End region 7 */
   0xb PF: > {} /* Start region 8 */
   0xc PF: > { %p6_p4 = scmp.ge.s32.totalorder %s8_s2, 10 } /* Start/End empty region 5 */
   0xd   : > { %14 = sbr.rel (!%p6_p4) target = $region9 }
   0xe   :  {}
"""
PROGRAM = """HloModule jit_step
%fused (a: f32[4]) -> f32[4] {
  ROOT %d = f32[4]{0} convolution(%a), backend_config={"window_config":{"estimated_cycles":"7"}}
}
%turn.1 (p: f32[5]) -> f32[5] {
  ROOT %u = f32[5]{0} fusion(%p), calls=%fused, op_name="x/attention/dot", {"estimated_cycles":"30"}
}
%more.2 (p: (s32[], f32[5])) -> pred[] {
  %constant.7 = s32[]{:T(128)} constant(1), metadata={stack_frame_id=1}
  %constant.8 = s32[]{:T(128)} constant(6), metadata={stack_frame_id=1}
  %g = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%g, %constant.8), direction=LT, metadata={op_name="lt"}
}
%small (p: f32[5]) -> f32[5] {
  %t = f32[5]{0} fusion(%p), calls=%fused, backend_config={"estimated_cycles":"18446744073709551615"}
  ROOT %s = f32[5]{0} fusion(%t), calls=%fused, backend_config={"estimated_cycles":"1"}
}
%large (p: f32[5]) -> f32[5] {
  ROOT %l = f32[5]{0} fusion(%p), calls=%fused, backend_config={"estimated_cycles":"100"}
}
ENTRY %main (v: f32[5]) -> f32[5] {
  %f = f32[5]{0} fusion(%v), calls=%fused, backend_config={"estimated_cycles":"1000"}
  %w = f32[5]{0} while(%f), condition=%more, body=%turn.1, backend_config={"known_trip_count":{"n":"4"}}
  %x = f32[5]{0} while(%f), condition=%more.2, body=%turn.1, backend_config={}
  %c = f32[5]{0} conditional(%i, %w, %w), branch_computations={%small, %large}
  ROOT %fused_forward.2 = f32[5]{0} custom-call(), custom_call_target="tpu_custom_call", op_name="fused_"
}
"""


def test_a_step_takes_its_largest_region_and_a_share_of_the_others():
    assert tpu_cycles.of_kernel(BUNDLES) == 5 + 10 * (5 + 4 + 1 / 2)


def test_a_kernel_without_a_grid_runs_once():
    text = ''.join(line + '\n' for line in BUNDLES.splitlines() if 'target' not in line)
    assert tpu_cycles.of_kernel(text) == 15


def test_loops_count_by_their_turns_and_choices_by_the_largest(tmp_path):
    with pytest.raises(FileNotFoundError, match='fused_forward.2'):
        tpu_cycles.with_kernels(PROGRAM, tmp_path)
    (tmp_path / '17-fused_forward.1-01-final_bundles.txt').write_text(BUNDLES)
    (tmp_path / '17-fused_forward.1-00-schedule-analysis_final_bundles.txt').write_text('')
    program = tpu_cycles.with_kernels(PROGRAM, tmp_path)
    found = tpu_cycles.by_operation(program)
    assert sum(found.values()) == 1000 + (4 + 6) * 30 + 100 + 100
    assert program_bytes.cycles(program) == {
        'optimizer and all else': 1000 + 100,
        'attention, all else': (4 + 6) * 30,
        'attention, kernels': 100,
    }

"""What is counted in machine code."""

from benchmarks.machine_code import Loop, hottest

CODE = """
.L_x_1:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, RZ ;
        /*0020*/              @!P0 BRA `(.L_x_2) ;
.L_x_2:
        /*0030*/                   HGMMA.64x32x16.F32.BF16 R40, gdesc[UR8], RZ, !UPT, gsb0 ;
        /*0040*/                   MUFU.EX2 R1, R2 ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
.L_x_3:
        /*0060*/                   HMMA.1688.F32.TF32 R4, R8, R12, RZ ;
        /*0070*/                   BRA `(.L_x_3);
"""


def test_a_loop_is_from_a_label_to_the_branch_back_to_it() -> None:
    """Branches forward are none; of an instruction of four warps a quarter is one warp's."""
    assert Loop.of(hottest(CODE)) == Loop(2, 16 * 8 * 16 + 64 * 32 * 16 / 4, 1, 5)
    assert Loop.of(["HMMA.1688.F32.TF32 R4"]).multiplications == 16 * 8 * 8

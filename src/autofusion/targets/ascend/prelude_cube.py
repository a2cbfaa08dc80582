"""The functions of generated kernels that work for the cube: fractals, products, and how results leave it."""

from __future__ import annotations

# name -> its text, in an order in which each only uses those before it and those of `prelude.FUNCTIONS`.
FUNCTIONS: dict[str, str] = {
    "FractalForm": """// How the rows of an operand lie: as the product reads them; so, and a single row stays a row;
// along the other axis, to be turned on the way to L0.
enum class FractalForm { Plain, Single, Turned };""",
    "Fractals": """// A matrix of rows x cols in global memory to fractals in L1. What will be turned lies in squares:
// of 32-bit elements each 16 rows are a matrix of their own, of bytes the rows are filled up to 32.
template <FractalForm form, typename T>
__aicore__ inline void Fractals(const LocalTensor<T>& to, const GlobalTensor<T>& from, int64_t rows, int64_t cols,
                                int64_t pitch) {
    if (rows <= 0 || cols <= 0) {
        return;
    }
    constexpr int64_t lanes = 32 / sizeof(T);
    constexpr bool squares = form == FractalForm::Turned && sizeof(T) == 4;
    constexpr int32_t unit = form == FractalForm::Turned && sizeof(T) == 1 ? 32 : 16;
    const int64_t part = squares ? 16 : rows;
    for (int64_t first = 0; first < rows; first += part) {
        const int64_t count = Least(part, rows - first);
        const int64_t whole = squares ? 16 : RoundUp(static_cast<int32_t>(rows), unit);
        const int64_t blocks = form == FractalForm::Single && rows == 1 ? 1 : whole;
        const int64_t base = first * RoundUp(static_cast<int32_t>(cols), 16);
        const bool direct = pitch > 0 && pitch <= 65535;  // else a copy a row: the same one, or far apart
        Nd2NzParams shape;
        shape.ndNum = 1;
        shape.nValue = static_cast<uint16_t>(direct ? count : 1);
        shape.dValue = static_cast<uint16_t>(cols);
        shape.srcNdMatrixStride = 0;
        shape.srcDValue = static_cast<uint16_t>(direct ? pitch : cols);
        shape.dstNzC0Stride = static_cast<uint16_t>(blocks);
        shape.dstNzNStride = 1;
        shape.dstNzMatrixStride = 0;
        for (int64_t row = 0; row < count; row += direct ? count : 1) {
            DataCopy(to[base + row * lanes], from[(first + row) * pitch], shape);
        }
    }
}""",
    "FractalRun": """// Fractals from L1 to L0, `count` of them `stride` apart.
template <typename T>
__aicore__ inline void FractalRun(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t count, int64_t stride,
                                  bool turned) {
    constexpr int64_t elements = 512 / sizeof(T);
    for (int64_t first = 0; first < count; first += 255) {
        LoadData2DParams run;
        run.startIndex = 0;
        run.repeatTimes = static_cast<uint8_t>(Least(255, count - first));
        run.srcStride = static_cast<uint16_t>(stride);
        run.dstGap = 0;
        run.ifTranspose = turned;
        LoadData(to[first * elements], from[first * stride * elements], run);
    }
}""",
    "Left": """// m x k of the left operand to L0A: fractals row by row, on arch 3510 column by column. A single row
// stays a row.
template <typename T>
__aicore__ inline void Left(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    constexpr int64_t lanes = 32 / sizeof(T), elements = 512 / sizeof(T);
    if (m == 1) {
        FractalRun(to, from, (k + elements - 1) / elements, 1, false);
        return;
    }
    const int64_t rows = (m + 15) / 16, depth = (k + lanes - 1) / lanes;
    if constexpr (__NPU_ARCH__ == 3510) {
        FractalRun(to, from, rows * depth, 1, false);
        return;
    }
    for (int64_t row = 0; row < rows; ++row) {
        FractalRun(to[row * depth * elements], from[row * elements], depth, rows, false);
    }
}""",
    "SquareRun": """// Squares of 16 x 16 of 32-bit elements, or of 32 x 32 bytes, `stride` apart, turned on their way
// from L1 to L0. Each becomes two fractals, with `halves` between them; `gap`: from the first of one to the first of
// the next.
template <typename T>
__aicore__ inline void SquareRun(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t count, int64_t stride,
                                 int64_t gap, int64_t halves) {
    LoadData2dTransposeParams run;
    run.startIndex = 0;
    run.repeatTimes = static_cast<uint8_t>(count);
    run.srcStride = static_cast<uint16_t>(stride);
    run.dstGap = static_cast<uint16_t>(gap);
    run.dstFracGap = static_cast<uint16_t>(halves);
    LoadDataWithTranspose(to, from, run);
}""",
    "ByteColumns": """// Bytes of k x n to fractals column by column. A square has two fractals along n. Where the last
// is one too many, it lands where the next step begins, which then writes over it.
template <typename T>
__aicore__ inline void ByteColumns(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    const int64_t columns = (n + 15) / 16, depth = (k + 31) / 32;
    for (int64_t step = 0; step < depth; ++step) {
        SquareRun(to[step * columns * 512], from[step * 1024], (n + 31) / 32, depth, 1, 0);
        if (columns % 2 != 0 && step + 1 < depth) {
            PipeBarrier<PIPE_MTE1>();
        }
    }
}""",
    "LeftTurnedBytes": """// The same from k x m.
template <typename T>
__aicore__ inline void LeftTurnedBytes(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    if constexpr (__NPU_ARCH__ == 3510) {
        ByteColumns(to, from, m, k);
        return;
    }
    const int64_t squares = (k + 31) / 32;
    for (int64_t row = 0; row < (m + 31) / 32; ++row) {
        SquareRun(to[row * squares * 1024], from[row * squares * 1024], squares, 1, 0, squares - 1);
    }
}""",
    "LeftTurned": """// The same from k x m.
template <typename T>
__aicore__ inline void LeftTurned(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t k) {
    const int64_t rows = (m + 15) / 16, depth = (k + 15) / 16;
    if constexpr (__NPU_ARCH__ == 3510) {
        for (int64_t step = 0; step < depth; ++step) {
            if constexpr (sizeof(T) == 4) {
                SquareRun(to[step * rows * 256], from[step * rows * 256], rows, 1, 0, rows - 1);
            } else {
                FractalRun(to[step * rows * 256], from[step * 256], rows, depth, true);
            }
        }
    } else if constexpr (sizeof(T) == 4) {
        // A square has two fractals along k. Where the last is one too many, it lands where the next row begins, and is
        // written over by the steps before, which come after it.
        const int64_t fractals = (k + 7) / 8;
        for (int64_t step = depth - 1; step >= 0; --step) {
            SquareRun(to[step * 256], from[step * rows * 256], rows, 1, fractals - 1, 0);
            if (fractals % 2 != 0 && step > 0) {
                PipeBarrier<PIPE_MTE1>();
            }
        }
    } else {
        FractalRun(to, from, rows * depth, 1, true);
    }
}""",
    "Right": """// k x n of the right operand to L0B, from n x k: the fractals as they are.
template <typename T>
__aicore__ inline void Right(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    constexpr int64_t lanes = 32 / sizeof(T);
    FractalRun(to, from, (n + 15) / 16 * ((k + lanes - 1) / lanes), 1, false);
}""",
    "RightTurnedBytes": """// The same from k x n.
template <typename T>
__aicore__ inline void RightTurnedBytes(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    ByteColumns(to, from, n, k);
}""",
    "RightTurned": """// The same from k x n: each fractal is turned.
template <typename T>
__aicore__ inline void RightTurned(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t n, int64_t k) {
    const int64_t columns = (n + 15) / 16, depth = (k + 15) / 16;
    for (int64_t step = 0; step < depth; ++step) {
        if constexpr (sizeof(T) == 4) {
            SquareRun(to[step * columns * 256], from[step * columns * 256], columns, 1, 0, columns - 1);
        } else {
            FractalRun(to[step * columns * 256], from[step * 256], columns, depth, true);
        }
    }
}""",
    "ToBiasTable": """// n numbers from L1 to the bias table, in blocks of 64 bytes, or of 32 on arch 3510; half becomes
// float.
template <typename A, typename T>
__aicore__ inline void ToBiasTable(const LocalTensor<A>& to, const LocalTensor<T>& from, int64_t n) {
    constexpr int64_t blocks = __NPU_ARCH__ == 2201 ? 1 : 2;
    DataCopy(to, from, DataCopyParams{1, static_cast<uint16_t>((n + 15) / 16 * blocks), 0, 0});
}""",
    "Ordered": """// Products onto one small tile are not kept in order by the hardware.
__aicore__ inline void Ordered(int64_t m, int64_t n) {
    if ((m / 16) * (n / 16) < 10) {
        PipeBarrier<PIPE_M>();
    }
}""",
    "ProductOf": """__aicore__ inline MmadParams ProductOf(int64_t m, int64_t n, int64_t k, bool fresh) {
    MmadParams shape;
    shape.m = static_cast<uint16_t>(m);
    shape.n = static_cast<uint16_t>(n);
    shape.k = static_cast<uint16_t>(k);
    shape.cmatrixInitVal = fresh;
    shape.cmatrixSource = false;
    shape.unitFlag = 0;
    return shape;
}""",
    "Multiply": """template <typename A, typename T>
__aicore__ inline void Multiply(const LocalTensor<A>& to, const LocalTensor<T>& left, const LocalTensor<T>& right,
                                int64_t m, int64_t n, int64_t k, bool fresh) {
    if (!fresh) {
        Ordered(m, n);
    }
    Mmad(to, left, right, ProductOf(m, n, k, fresh));
}""",
    "MultiplyOnto": """// The first product starts from the bias.
template <typename A, typename T>
__aicore__ inline void MultiplyOnto(const LocalTensor<A>& to, const LocalTensor<T>& left,
                                    const LocalTensor<T>& right, const LocalTensor<A>& bias, int64_t m, int64_t n,
                                    int64_t k, bool fresh) {
    if (fresh) {
        Mmad(to, left, right, bias, ProductOf(m, n, k, false));
        return;
    }
    Ordered(m, n);
    Mmad(to, left, right, ProductOf(m, n, k, false));
}""",
    "DrainShape": """// m x n results to global memory, row by row.
__aicore__ inline FixpipeParamsV220 DrainShape(int64_t m, int64_t n, int64_t pitch, bool relu) {
    FixpipeParamsV220 shape;
    shape.nSize = static_cast<uint16_t>(n);
    shape.mSize = static_cast<uint16_t>(m);
    shape.srcStride = static_cast<uint16_t>((m + 15) / 16 * 16);
    shape.dstStride = static_cast<uint32_t>(pitch);
    shape.quantPre = QuantMode_t::NoQuant;
    shape.reluEn = relu;
    shape.unitFlag = 0;
    shape.ndNum = 1;
    shape.srcNdStride = 0;
    shape.dstNdStride = 0;
    return shape;
}""",
    "Drain": """// ReLU and the rounding to T happen on the way.
template <typename T, typename A>
__aicore__ inline void Drain(const GlobalTensor<T>& to, const LocalTensor<A>& from, int64_t m, int64_t n,
                             int64_t pitch, bool relu) {
    FixpipeParamsV220 shape = DrainShape(m, n, pitch, relu);
    if constexpr (std::is_same_v<T, half>) {
        shape.quantPre = QuantMode_t::F322F16;
    } else if constexpr (std::is_same_v<T, bfloat16_t>) {
        shape.quantPre = QuantMode_t::F322BF16;
    }
    Fixpipe<T, A, CFG_ROW_MAJOR>(to, from, shape);
}""",
    "DrainScaled": """// int32 to half: multiplied by the float32 of these bits on the way.
__aicore__ inline void DrainScaled(const GlobalTensor<half>& to, const LocalTensor<int32_t>& from, int64_t m, int64_t n,
                                   int64_t pitch, bool relu, uint64_t scale) {
    FixpipeParamsV220 shape = DrainShape(m, n, pitch, relu);
    shape.quantPre = QuantMode_t::DEQF16;
    shape.deqScalar = scale;
    Fixpipe<half, int32_t, CFG_ROW_MAJOR>(to, from, shape);
}""",
    "Ring": """// Tiles from the cube to its two vector cores, through global memory: one is read while the next is
// written. Both vector cores pass every tile; the one that it is not for skips it.
template <typename T, int Ready, int Free>
struct Ring {
    static constexpr int64_t DEPTH = 2;
    GlobalTensor<T> slots;
    int64_t size = 0, passed = 0;
    __aicore__ inline void Init(GM_ADDR address, int64_t elements) {
        slots.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
        size = elements;
    }
    __aicore__ inline GlobalTensor<T> ToFill() {
        if (passed >= DEPTH) {
            CrossCoreWaitFlag(Free);
        }
        return slots[passed % DEPTH * size];
    }
    __aicore__ inline void Filled() {
        CrossCoreSetFlag<2, PIPE_FIX>(Ready);
        ++passed;
    }
    __aicore__ inline void Close() {
        for (; passed > 0; passed = passed > DEPTH ? DEPTH - 1 : passed - 1) {
            CrossCoreWaitFlag(Free);
        }
    }
    __aicore__ inline GlobalTensor<T> ToRead() {
        CrossCoreWaitFlag(Ready);
        return slots[passed % DEPTH * size];
    }
    __aicore__ inline void Read() {
        CrossCoreSetFlag<2, PIPE_MTE2>(Free);
        ++passed;
    }
    __aicore__ inline void Skip() {
        CrossCoreWaitFlag(Ready);
        Read();
    }
};""",
    "DirectRing": """// Tiles from the cube into the unified buffer of one of its two vector cores, each of which has
// slots of its own: one is read while the next is written. The vector core gives both away when it
// opens the kernel, behind the barrier that completes what used their bytes. Flags of the second
// vector core are 16 further on the cube's side.
template <typename T, int Ready, int Free>
struct DirectRing {
    static constexpr int64_t DEPTH = 2, SECOND = 16;
    LocalTensor<T> slots;
    int64_t size = 0, passed[2] = {0, 0};
    TEventID scalarDone = 0;
    __aicore__ inline void Init(TPipe& pipe, const LocalTensor<uint8_t>& memory, int64_t elements) {
        slots = memory.ReinterpretCast<T>();
        size = elements;
        if ASCEND_IS_AIV {
            scalarDone = pipe.FetchEventID(HardEvent::S_V);
            for (int64_t slot = 0; slot < DEPTH; ++slot) {
                CrossCoreSetFlag<4, PIPE_V>(Free);
            }
        }
    }
    __aicore__ inline LocalTensor<T> ToFill(int64_t turn) {
        CrossCoreWaitFlag<4>(Free + turn * SECOND);
        return slots[passed[turn] % DEPTH * size];
    }
    __aicore__ inline void Filled(int64_t turn) {
        CrossCoreSetFlag<4, PIPE_FIX>(Ready + turn * SECOND);
        ++passed[turn];
    }
    __aicore__ inline void Close() {
        for (int64_t turn = 0; turn < 2; ++turn) {
            for (int64_t slot = 0; slot < DEPTH; ++slot) {
                CrossCoreWaitFlag<4>(Free + turn * SECOND);
            }
        }
    }
    __aicore__ inline LocalTensor<T> ToRead() {
        CrossCoreWaitFlag<4>(Ready);
        return slots[passed[0] % DEPTH * size];
    }
    __aicore__ inline void Read() {  // by whichever unit
        SetFlag<HardEvent::S_V>(scalarDone);
        WaitFlag<HardEvent::S_V>(scalarDone);
        CrossCoreSetFlag<4, PIPE_V>(Free);
        ++passed[0];
    }
};""",
    "DrainDirect": """// m x n results into the unified buffer of a vector core; rows are filled up to 32 bytes.
constexpr FixpipeConfig TO_UB = {CO2Layout::ROW_MAJOR, true};

template <typename T>
__aicore__ inline void DrainDirect(const LocalTensor<T>& to, const LocalTensor<T>& from, int64_t m, int64_t n,
                                   int64_t pitch, int64_t turn) {
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> shape;
    shape.nSize = static_cast<uint16_t>(RoundUp(static_cast<int32_t>(n), 8));
    shape.mSize = static_cast<uint16_t>(m);
    shape.srcStride = static_cast<uint16_t>((m + 15) / 16 * 16);
    shape.dstStride = static_cast<uint32_t>(pitch);
    shape.quantPre = QuantMode_t::NoQuant;
    shape.reluEn = false;
    shape.unitFlag = 0;
    shape.params.ndNum = 1;
    shape.params.srcNdStride = 0;
    shape.params.dstNdStride = 0;
    shape.dualDstCtrl = 0;
    shape.subBlockId = static_cast<uint8_t>(turn);
    Fixpipe<T, T, TO_UB>(to, from, shape);
}""",
}

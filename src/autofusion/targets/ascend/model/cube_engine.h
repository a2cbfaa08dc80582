// Definitions of cube.h.
#ifndef AICORE_CUBE_ENGINE_H
#define AICORE_CUBE_ENGINE_H

#include "copy_engine.h"
#include "cube.h"
#include "vector.h"

namespace aicore {

AICORE_ENGINE void nd_to_nz(const Instruction& i, const View& dst, uint8_t* source, int64_t source_bytes, const AscendC::Nd2NzParams& p,
                            int size) {
    check_range(i, "ndNum", p.ndNum, 0, 4095);
    check_range(i, "nValue", p.nValue, 0, 16384);
    check_range(i, "dValue", p.dValue, 0, 65535);
    check_range(i, "srcNdMatrixStride", p.srcNdMatrixStride, 0, 65535);
    check_range(i, "srcDValue", p.srcDValue, 1, 65535);
    check_range(i, "dstNzC0Stride", p.dstNzC0Stride, 1, 16384);
    check_range(i, "dstNzNStride", p.dstNzNStride, 1, 16384);
    check_range(i, "dstNzMatrixStride", p.dstNzMatrixStride, 0, 65535);
    if (!p.ndNum || !p.nValue || !p.dValue) return;
    check_use(i, dst, 0, 0, true, "dst");
    check_space(i, dst, Space::L1, "dst");
    check_align(i, dst, 0, 32, "dst");
    int64_t row = p.dValue * size, per_block = 32 / size, blocks = (p.dValue + per_block - 1) / per_block;
    for (int64_t m = 0; m < p.ndNum; ++m)
        for (int64_t n = 0; n < p.nValue; ++n) {
            int64_t from = (m * p.srcNdMatrixStride + n * p.srcDValue) * size;
            if (from + row > source_bytes)
                fail(5, i.api, i.line, "GM", "bytes to %lld of a GlobalTensor of %lld bytes", (long long)(from + row), (long long)source_bytes);
            gm_access(i, source + from, row, false, false);
            for (int64_t b = 0; b < blocks; ++b) {
                int64_t to = m * p.dstNzMatrixStride * size + (b * p.dstNzC0Stride + n * p.dstNzNStride) * 32;
                int64_t bytes = b + 1 < blocks ? 32 : row - b * 32;
                write_local(i, dst, to, 32, "dst");
                std::memset(dst.raw() + to, 0, 32);
                std::memcpy(dst.raw() + to, source + from + b * 32, size_t(bytes));
            }
        }
    count_moved(Space::GM, Space::L1, p.ndNum * p.nValue * row);
    copy_time(i, true, p.ndNum * p.nValue * row);
}

inline void check_load(const Instruction& i, const View& dst, const View& src) {
    check_use(i, dst, 0, 0, true, "dst");
    check_use(i, src, 0, 0, false, "src");
    if (dst.space() != Space::L0A && dst.space() != Space::L0B)
        fail(6, i.api, i.line, dst.name(), "LoadData goes to A2 or B2, not to %s", kSpaceNames[int(dst.space())]);
    check_space(i, src, Space::L1, "src");
    check_align(i, dst, 0, 512, "dst");
    check_align(i, src, 0, 32, "src");
}

// One square of n x n elements of `size` bytes, given as fractals of 512 bytes, transposed; valid bits go along.
inline void transpose_square(const View& dst, const int64_t* to, const View& src, const int64_t* from, int size) {
    int side = size == 1 ? 32 : 16, width = 32 / size;  // a fractal is 16 rows of `width`
    auto place = [&](const int64_t* fractals, int row, int column) {
        int fractal = row / 16 + column / width;
        return fractals[fractal] + row % 16 * 32 + column % width * size;
    };
    std::vector<uint8_t> square(size_t(side * side * size));
    bool valid = true;
    for (int f = 0; f < side * side * size / 512; ++f) valid &= all_valid(src.memory(), src.address + from[f], 512);
    for (int r = 0; r < side; ++r)
        for (int c = 0; c < side; ++c)
            std::memcpy(square.data() + (r * side + c) * size, src.raw() + place(from, r, c), size_t(size));
    for (int r = 0; r < side; ++r)
        for (int c = 0; c < side; ++c) {
            int64_t at = place(to, r, c);
            std::memcpy(dst.raw() + at, square.data() + (c * side + r) * size, size_t(size));
            if (!valid) copy_valid(dst.memory(), dst.address + at, src.memory(), src.address + place(from, c, r), size);
        }
}

inline void load_range(const Instruction& i, int64_t start, int64_t repeat, int64_t stride, int64_t gap, int64_t mode) {
    check_range(i, "startIndex", start, 0, 65535);
    check_range(i, "repeatTimes", repeat, 0, 255);
    check_range(i, "srcStride", stride, 0, 65535);
    check_range(i, "dstGap", gap, 0, 65535);
    check_range(i, "addrMode", mode, 0, 0);
}

AICORE_ENGINE void load_fractals(const View& dst, const View& src, const AscendC::LoadData2DParams& p, int size, Where where) {
    auto i = begin(MTE1, "LoadData", where);
    load_range(i, p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.addrMode);
    check_load(i, dst, src);
    if (p.ifTranspose && size != 2) fail(3, i.api, i.line, "ifTranspose", "takes 16-bit types, this one has %d bytes", size);
    for (int64_t r = 0; r < p.repeatTimes; ++r) {
        int64_t from = (p.startIndex + r * p.srcStride) * 512, to = r * (1 + (k2201 ? p.dstGap : 0)) * 512;
        read_local(i, src, from, 512, "src", false);
        write_local(i, dst, to, 512, "dst");
        if (p.ifTranspose) {
            transpose_square(dst, &to, src, &from, 2);
        } else {
            std::memcpy(dst.raw() + to, src.raw() + from, 512);
            copy_valid(dst.memory(), dst.address + to, src.memory(), src.address + from, 512);
        }
    }
    count_moved(Space::L1, dst.space(), p.repeatTimes * 512);
    end(i, kCubeHead + double(p.repeatTimes) * 512 / kOnChipRate);
}

AICORE_ENGINE void load_fractals_gm(const View& dst, uint8_t* source, const AscendC::LoadData2DParams& p, Where where) {
    auto i = begin(MTE2, "LoadData", where);
    load_range(i, p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.addrMode);
    if (p.ifTranspose) fail(3, i.api, i.line, "ifTranspose", "not on the way from GM");
    check_use(i, dst, 0, 0, true, "dst");
    check_align(i, dst, 0, dst.space() == Space::L1 ? 32 : 512, "dst");
    for (int64_t r = 0; r < p.repeatTimes; ++r) {
        int64_t from = (p.startIndex + r * p.srcStride) * 512, to = r * (1 + p.dstGap) * 512;
        gm_access(i, source + from, 512, false, false);
        write_local(i, dst, to, 512, "dst");
        std::memcpy(dst.raw() + to, source + from, 512);
    }
    count_moved(Space::GM, dst.space(), p.repeatTimes * 512);
    copy_time(i, true, p.repeatTimes * 512);
}

AICORE_ENGINE void load_transposed(const View& dst, const View& src, const AscendC::LoadData2dTransposeParams& p, int size, Where where) {
    auto i = begin(MTE1, "LoadDataWithTranspose", where);
    load_range(i, p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.addrMode);
    check_range(i, "dstFracGap", p.dstFracGap, 0, 65535);
    check_load(i, dst, src);
    int fractals = size == 2 ? 1 : 2;
    for (int64_t r = 0; r < p.repeatTimes; ++r) {
        int64_t from[2], to[2];
        for (int f = 0; f < fractals; ++f) {
            from[f] = ((p.startIndex + r * p.srcStride) * fractals + f) * 512;
            to[f] = (r * (1 + p.dstGap) + f * (1 + p.dstFracGap)) * 512;
            read_local(i, src, from[f], 512, "src", false);
            write_local(i, dst, to[f], 512, "dst");
        }
        transpose_square(dst, to, src, from, size);
    }
    count_moved(Space::L1, dst.space(), p.repeatTimes * fractals * 512);
    end(i, kCubeHead + double(p.repeatTimes) * fractals * 512 / kOnChipRate);
}

// ---- Mmad

inline float operand(const uint8_t* at, Unit unit) {
    switch (unit) {
        case Unit::Half: { uint16_t bits; std::memcpy(&bits, at, 2); return half_value(bits); }
        case Unit::Bfloat: { uint16_t bits; std::memcpy(&bits, at, 2); return float_of(uint32_t(bits) << 16); }
        case Unit::Float: { float value; std::memcpy(&value, at, 4); return value; }
        default: return float(int8_t(*at));
    }
}

template <typename T> void accumulate_product(T* c, const T* a, const T* b, int64_t m, int64_t n, int64_t k) {
    for (int64_t row = 0; row < m; ++row)
        for (int64_t step = 0; step < k; ++step) {
            T left = a[row * k + step];
            T* out = c + row * n;
            const T* right = b + step * n;
            for (int64_t column = 0; column < n; ++column) out[column] += left * right[column];
        }
}

template <typename T>
void multiply_as(const View& c, const View& a, const View& b, const View* bias, const AscendC::MmadParams& p, Unit unit, bool keep,
                 const std::vector<int64_t>& a_at, const std::vector<int64_t>& b_at) {
    int64_t m = p.m, n = p.n, k = p.k, c_step = (m + 15) / 16 * 256;
    int size = unit == Unit::Float ? 4 : unit == Unit::Int8 ? 1 : 2;
    std::vector<T> left(size_t(m * k)), right(size_t(k * n)), sum(size_t(m * n), T(0));
    (void)size;
    for (size_t x = 0; x < left.size(); ++x) left[x] = T(operand(a.raw() + a_at[x], unit));
    for (size_t x = 0; x < right.size(); ++x) right[x] = T(operand(b.raw() + b_at[x], unit));
    T* out = (T*)c.raw();
    auto at = [&](int64_t row, int64_t column) { return column / 16 * c_step + row * 16 + column % 16; };
    for (int64_t row = 0; row < m; ++row)
        for (int64_t column = 0; column < n; ++column) {
            if (keep) sum[size_t(row * n + column)] = out[at(row, column)];
            if (bias) sum[size_t(row * n + column)] = ((const T*)bias->raw())[column];
        }
    accumulate_product(sum.data(), left.data(), right.data(), m, n, k);
    for (int64_t row = 0; row < m; ++row)
        for (int64_t column = 0; column < n; ++column) out[at(row, column)] = sum[size_t(row * n + column)];
}

AICORE_ENGINE void multiply(const View& c, const View& a, const View& b, const View* bias, const AscendC::MmadParams& p, Unit unit, Where where) {
    auto i = begin(M, "Mmad", where);
    check_range(i, "m", p.m, 0, 4095);
    check_range(i, "n", p.n, 0, 4095);
    check_range(i, "k", p.k, 0, 4095);
    check_range(i, "unitFlag (not in the model)", p.unitFlag, 0, 0);
    if (p.cmatrixSource) fail(4, i.api, i.line, "cmatrixSource", "not in the model: use Mmad with a bias tensor");
    if (bias && p.cmatrixInitVal)
        fail(4, i.api, i.line, "cmatrixInitVal", "is true: C would start from 0, not from the bias (assumed); set it to false");
    if (!p.m || !p.n || !p.k) return;
    check_use(i, c, 0, 0, true, "C");
    check_use(i, a, 0, 0, false, "A");
    check_use(i, b, 0, 0, false, "B");
    check_space(i, c, Space::L0C, "C");
    check_space(i, a, Space::L0A, "A");
    check_space(i, b, Space::L0B, "B");
    check_align(i, c, 0, 1024, "C");
    check_align(i, a, 0, 512, "A");
    check_align(i, b, 0, 512, "B");
    int size = unit == Unit::Float ? 4 : unit == Unit::Int8 ? 1 : 2;
    int64_t m = p.m, n = p.n, k = p.k, width = 32 / size;
    int64_t m_blocks = (m + 15) / 16, n_blocks = (n + 15) / 16, k_blocks = (k + width - 1) / width;
    if (p.kDirectionAlign && size == 4) k_blocks = (k + 15) / 16 * 2;
    bool gemv = m == 1;
#if __NPU_ARCH__ == 3510
    gemv = gemv && !p.disableGemv;
#endif
    auto a_place = [&](int64_t row, int64_t step) {
        if (gemv) return step * size;
        int64_t fractal = k2201 ? row / 16 * k_blocks + step / width : step / width * m_blocks + row / 16;
        return fractal * 512 + row % 16 * 32 + step % width * size;
    };
    auto b_place = [&](int64_t step, int64_t column) {
        return (step / width * n_blocks + column / 16) * 512 + column % 16 * 32 + step % width * size;
    };
    std::vector<int64_t> a_at, b_at;
    a_at.reserve(size_t(m * k));
    b_at.reserve(size_t(k * n));
    for (int64_t row = 0; row < m; ++row)
        for (int64_t step = 0; step < k; ++step) {
            if (step % width == 0) read_local(i, a, a_place(row, step), (k - step < width ? k - step : width) * size, "A");
            a_at.push_back(a_place(row, step));
        }
    for (int64_t step = 0; step < k; ++step)
        for (int64_t column = 0; column < n; ++column) {
            if (step % width == 0) read_local(i, b, b_place(step, column), (k - step < width ? k - step : width) * size, "B");
            b_at.push_back(b_place(step, column));
        }
    if (bias) {
        check_space(i, *bias, Space::BT, "bias");
        check_align(i, *bias, 0, 64, "bias");
        read_local(i, *bias, 0, n * 4, "bias");
    }
    bool keep = !bias && !p.cmatrixInitVal;
    i.in_order = (m / 16) * (n / 16) >= 10;
    for (int64_t block = 0; block < n_blocks; ++block)
        for (int64_t row = 0; row < m; ++row) {
            int64_t at = (block * m_blocks * 256 + row * 16) * 4, bytes = (n - block * 16 < 16 ? n - block * 16 : 16) * 4;
            if (keep) read_local(i, c, at, bytes, "C");
            write_local(i, c, at, bytes, "C");
        }
    if (unit == Unit::Int8) multiply_as<int32_t>(c, a, b, bias, p, unit, keep, a_at, b_at);
    else multiply_as<float>(c, a, b, bias, p, unit, keep, a_at, b_at);
    double steps = double(m_blocks) * double(n_blocks) * double((k * size + 31) / 32);
    end(i, kCubeHead + steps * (size == 4 ? 2 : 1));
}

// ---- Fixpipe

inline void check_nz(const Instruction& i, const Pipeout& p) {
    if (!p.row_major && p.n % 16) fail(4, i.api, i.line, "nSize", "%lld is not a multiple of 16, NZ output needs that", (long long)p.n);
}

AICORE_ENGINE void check_pipeout(const Instruction& i, const Pipeout& p, int64_t unit_flag, bool channel_split) {
    check_range(i, "nSize", p.n, 0, 4095);
    check_range(i, "mSize", p.m, 0, p.row_major && k2201 ? 8192 : 65535);
    check_range(i, "srcStride", p.source_stride, 0, 65535);
    check_range(i, "dstStride", p.target_stride, 1, UINT32_MAX);
    check_range(i, "ndNum", p.matrices, 0, 65535);
    check_range(i, "srcNdStride", p.source_matrix_stride, 0, k2201 ? 512 * 16 : 65535);
    check_range(i, "dstNdStride", p.target_matrix_stride, 0, k2201 ? 65535 : UINT32_MAX);
    check_range(i, "unitFlag (not in the model)", unit_flag, 0, 0);
    if (channel_split) fail(4, i.api, i.line, "isChannelSplit", "not in the model");
    if (p.quant != DEQF16) {
        if (p.scale) fail(4, i.api, i.line, "deqScalar", "a scale, and a mode of quantPre that takes none");
        return check_nz(i, p);
    }
    float scale = float_of(uint32_t(p.scale));
    if (p.scale >> 32) fail(4, i.api, i.line, "deqScalar", "bits above the float32 of the scale");
    if (!std::isnormal(scale)) fail(4, i.api, i.line, "deqScalar", "the scale is %g: it may not be 0, denormal, infinite or NaN", double(scale));
    if (p.scale & 0x1fff)
        fail(4, i.api, i.line, "deqScalar", "the low 13 bits of the scale %g are dropped, and are not 0", double(scale));
    check_nz(i, p);
}

// 16 values of row `row`, column block `block`, converted; returns their number.
inline int64_t fixed_values(const View& src, const Pipeout& p, int64_t matrix, int64_t row, int64_t block, uint8_t* out) {
    int64_t count = p.n - block * 16 < 16 ? p.n - block * 16 : 16;
    const uint8_t* from = src.raw() + (matrix * p.source_matrix_stride + block * p.source_stride + row) * 64;
    for (int64_t k = 0; k < count; ++k) {
        if (p.source_integer) {
            int32_t value;
            std::memcpy(&value, from + k * 4, 4);
            if (p.relu && value < 0) value = 0;
            if (p.quant == DEQF16) {
                float product = float(value) * float_of(uint32_t(p.scale));
                uint16_t narrow = half_bits(product);
                if ((narrow & 0x7fff) == 0x7c00) narrow -= 1;  // no infinity
                std::memcpy(out + k * 2, &narrow, 2);
                continue;
            }
            std::memcpy(out + k * 4, &value, 4);
            continue;
        }
        float value;
        std::memcpy(&value, from + k * 4, 4);
        if (p.relu) value = value > 0 ? value : 0;
        uint16_t narrow = p.quant == F322F16 ? half_bits(value) : bfloat_bits(value);
        if (p.quant == NoQuant) std::memcpy(out + k * 4, &value, 4);
        else std::memcpy(out + k * 2, &narrow, 2);
    }
    return count;
}

// Into UB columns are filled up to 32 bytes: like all copies inside the chip it carries unwritten bytes along.
inline void read_accumulator(const Instruction& i, const View& src, const Pipeout& p, bool strict) {
    check_use(i, src, 0, 0, false, "src");
    check_space(i, src, Space::L0C, "src");
    check_align(i, src, 0, 64, "src");
    for (int64_t matrix = 0; matrix < p.matrices; ++matrix)
        for (int64_t block = 0; block < (p.n + 15) / 16; ++block) {
            int64_t count = p.n - block * 16 < 16 ? p.n - block * 16 : 16;
            for (int64_t row = 0; row < p.m; ++row)
                read_local(i, src, (matrix * p.source_matrix_stride + block * p.source_stride + row) * 64, count * 4, "src", strict);
        }
}

AICORE_ENGINE void pipe_to_gm(const Instruction& i, uint8_t* target, const View& src, const Pipeout& p) {
    if (!p.n || !p.m || !p.matrices) return;
    read_accumulator(i, src, p, true);
    int64_t blocks = (p.n + 15) / 16, size = p.target_size;
    if (!p.row_major && uint64_t(target) % 32) fail(2, i.api, i.line, "GM", "NZ output starts at a multiple of 32 bytes");
    std::vector<uint8_t> line(size_t(blocks * 16 * size));
    for (int64_t matrix = 0; matrix < p.matrices; ++matrix)
        for (int64_t row = 0; row < p.m; ++row) {
            if (p.row_major) {
                for (int64_t b = 0; b < blocks; ++b) fixed_values(src, p, matrix, row, b, line.data() + b * 16 * size);
                put(i, target + (matrix * p.target_matrix_stride + row * p.target_stride) * size, line.data(), p.n * size);
                continue;
            }
            for (int64_t b = 0; b < blocks; ++b) {
                fixed_values(src, p, matrix, row, b, line.data());
                put(i, target + b * p.target_stride * 32 + row * 16 * size, line.data(), 16 * size);
            }
        }
    count_moved(Space::L0C, Space::GM, p.matrices * p.m * p.n * size);
    copy_time(i, false, p.matrices * p.m * p.n * size);
}

// Which vector core of the block has a row and column, and where it lies there.
inline Core* vector_core(const Instruction& i, int64_t sub_block) {
    for (auto& c : machine->cores)
        if (c->kind == CoreKind::AIV && c->block == i.core->block && c->sub_block == sub_block) return c.get();
    fail(4, i.api, i.line, "subBlockId", "the block has no vector core %lld", (long long)sub_block);
}

inline void check_into_ub(const Instruction& i, const Pipeout& p) {
    int64_t columns = p.split == 2 ? p.n / 2 : p.n;
    if (columns * p.target_size % 32)
        fail(2, i.api, i.line, "nSize", "a row of %lld bytes into UB, a multiple of 32 is needed", (long long)(columns * p.target_size));
    if (p.split == 1 && p.m % 2) fail(4, i.api, i.line, "mSize", "%lld rows in two halves", (long long)p.m);
    if (p.split == 2 && p.n % 32) fail(4, i.api, i.line, "nSize", "%lld columns in two halves: a multiple of 32 is needed", (long long)p.n);
    if (p.split && (p.quant != NoQuant || p.relu))
        fail(4, i.api, i.line, "dualDstCtrl", "two destinations do not go with quantisation or ReLU on the way");
}

AICORE_ENGINE void pipe_to_chip(const Instruction& i, const View& dst, const View& src, const Pipeout& p) {
    if (!p.n || !p.m || !p.matrices) return;
    bool to_ub = dst.owner && dst.space() == Space::UB;
    read_accumulator(i, src, p, !to_ub);
    check_use(i, dst, 0, 0, true, "dst");
    check_align(i, dst, 0, 32, "dst");
    Core* owners[2] = {i.core, i.core};
    if (to_ub) {
        check_into_ub(i, p);
        for (int half = 0; half < 2; ++half) owners[half] = vector_core(i, p.split ? half : p.sub_block);
    } else if (dst.space() != Space::L1) {
        fail(6, i.api, i.line, dst.name(), "no path from L0C to %s", kSpaceNames[int(dst.space())]);
    }
    int64_t blocks = (p.n + 15) / 16, size = p.target_size;
    int64_t rows = p.split == 1 ? p.m / 2 : p.m, columns = p.split == 2 ? p.n / 2 : p.n;
    std::vector<uint8_t> values(size_t(16 * size));
    for (int64_t matrix = 0; matrix < p.matrices; ++matrix)
        for (int64_t row = 0; row < p.m; ++row)
            for (int64_t b = 0; b < blocks; ++b) {
                int64_t count = fixed_values(src, p, matrix, row, b, values.data()), bytes = count * size;
                Core& owner = *owners[row / rows + b * 16 / columns];
                int64_t at = p.row_major ? (matrix * p.target_matrix_stride + row % rows * p.target_stride + b * 16 % columns) * size
                                         : b * p.target_stride * 32 + row * 16 * size;
                check_use(i, dst, at, bytes, true, "dst");
                Memory& memory = owner.memories[int(dst.space())];
                write(i, owner, memory, dst.address + at, bytes, dst.name());
                std::memcpy(memory.data + dst.address + at, values.data(), size_t(bytes));
                int64_t from = src.address + (matrix * p.source_matrix_stride + b * p.source_stride + row) * 64;
                for (int64_t k = 0; k < count && to_ub; ++k)
                    if (!all_valid(src.memory(), from + k * 4, 4)) set_valid(memory, dst.address + at + k * size, size, false);
            }
    count_moved(Space::L0C, dst.space(), p.matrices * p.m * p.n * size);
    end(i, kCubeHead + double(p.matrices * p.m * p.n * size) / kOnChipRate);
}

}  // namespace aicore

#endif

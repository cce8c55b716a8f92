// A device for PyTorch without a GPU: its memory is the processor's, its streams are those of the stand-in for CUDA
// (../nccl_standin), queues on threads that are as late as they like. What writes into tensors that are there is put into the
// current stream; what makes new ones waits for that stream first. So a missing event gives wrong results.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda_runtime_api.h"

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
constexpr DeviceType OURS = DeviceType::PrivateUse1;
constexpr int DEVICES = 8, POOL = 32;

void check(cudaError_t code) { TORCH_CHECK(code == cudaSuccess, cudaGetErrorString(code)); }

// ---- streams ----

struct Known { // of a device: its usual stream, and the others
    std::mutex lock;
    cudaStream_t stream[1 + POOL] = {};
    unsigned next = 0;
};
Known known[DEVICES];
thread_local DeviceIndex current;
thread_local int64_t current_stream[DEVICES];

cudaStream_t queue(DeviceIndex device, int64_t id) {
    Known &k = known[device];
    std::lock_guard<std::mutex> guard(k.lock);
    if (!k.stream[id]) check(cudaStreamCreateWithFlags(&k.stream[id], 0));
    return k.stream[id];
}
cudaStream_t queue(const Stream &s) { return queue(s.device_index(), s.id()); }
cudaStream_t here() { return queue(current, current_stream[current]); }
DeviceIndex index_of(Device d) { return d.index() < 0 ? current : d.index(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
    DeviceType type() const override { return OURS; }
    Device exchangeDevice(Device d) const override {
        Device before(OURS, current);
        setDevice(d);
        return before;
    }
    Device getDevice() const override { return Device(OURS, current); }
    void setDevice(Device d) const override { uncheckedSetDevice(d); }
    void uncheckedSetDevice(Device d) const noexcept override {
        if (d.index() >= 0) current = d.index(), cudaSetDevice(d.index());
    }
    Stream stream(DeviceIndex d, int64_t id) const { return Stream(Stream::UNSAFE, Device(OURS, d), id); }
    Stream getStream(Device d) const override { return stream(index_of(d), current_stream[index_of(d)]); }
    Stream getDefaultStream(Device d) const override { return stream(index_of(d), 0); }
    Stream getNewStream(Device d, int) const override {
        Known &k = known[index_of(d)];
        std::lock_guard<std::mutex> guard(k.lock);
        return stream(index_of(d), 1 + k.next++ % POOL);
    }
    Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
    Stream exchangeStream(Stream s) const override {
        Stream before = getStream(s.device());
        current_stream[s.device_index()] = s.id();
        return before;
    }
    bool isStreamCapturing(const Stream &s) const override {
        cudaStreamCaptureStatus status;
        check(cudaStreamGetCaptureInfo(queue(s), &status));
        return status == cudaStreamCaptureStatusActive;
    }
    void *getStreamNativeHandle(const Stream s) const override { return queue(s); }
    DeviceIndex deviceCount() const noexcept override { return DEVICES; }
    bool queryStream(const Stream &s) const override { return cudaStreamQuery(queue(s)) == cudaSuccess; }
    void synchronizeStream(const Stream &s) const override { check(cudaStreamSynchronize(queue(s))); }
    void synchronizeDevice(const DeviceIndex) const override { check(cudaDeviceSynchronize()); }

    void record(void **event, const Stream &s, const DeviceIndex, const c10::EventFlag) const override {
        if (!*event) check(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming));
        check(cudaEventRecord((cudaEvent_t)*event, queue(s)));
    }
    void block(void *event, const Stream &s) const override {
        if (event) check(cudaStreamWaitEvent(queue(s), (cudaEvent_t)event, 0));
    }
    bool queryEvent(void *event) const override {
        cudaError_t code = event ? cudaEventQuery((cudaEvent_t)event) : cudaSuccess;
        if (code != cudaErrorNotReady) check(code); // an event of a graph may not be asked
        return code == cudaSuccess;
    }
    void synchronizeEvent(void *event) const override {
        if (event) check(cudaEventSynchronize((cudaEvent_t)event));
    }
    void destroyEvent(void *event, const DeviceIndex) const noexcept override {
        if (event) cudaEventDestroy((cudaEvent_t)event);
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const Stream &s) const override;
};

// ---- memory: who frees it gives it to the next one who asks on the same stream, at once, as caching allocators do ----

struct Block {
    void *memory;
    size_t bytes;
    cudaStream_t stream;
    std::vector<Stream> used; // others that were told of
};
std::mutex memory_lock;
std::map<void *, Block> taken;
std::map<std::pair<cudaStream_t, size_t>, std::vector<void *>> spare;
std::deque<std::pair<Block, std::vector<cudaEvent_t>>> waiting;

void look_at_waiting() {
    for (size_t n = waiting.size(); n; n--) {
        auto one = std::move(waiting.front());
        waiting.pop_front();
        bool free = true;
        for (cudaEvent_t e : one.second) free &= cudaEventQuery(e) == cudaSuccess;
        if (free) {
            for (cudaEvent_t e : one.second) cudaEventDestroy(e);
            spare[{one.first.stream, one.first.bytes}].push_back(one.first.memory);
        } else {
            waiting.push_back(std::move(one));
        }
    }
}

void give(void *memory) {
    if (!memory) return;
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = taken.find(memory);
    Block b = std::move(found->second);
    taken.erase(found);
    if (b.used.empty()) {
        spare[{b.stream, b.bytes}].push_back(memory);
        return;
    }
    std::vector<cudaEvent_t> events;
    for (const Stream &s : b.used) {
        cudaEvent_t e;
        cudaEventCreateWithFlags(&e, 0), cudaEventRecord(e, queue(s));
        events.push_back(e);
    }
    waiting.emplace_back(std::move(b), std::move(events));
}

struct Memory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        Device device(OURS, current);
        if (!bytes) return {nullptr, nullptr, &give, device};
        size_t size = (bytes + 63) / 64 * 64;
        cudaStream_t stream = here();
        std::lock_guard<std::mutex> guard(memory_lock);
        look_at_waiting();
        auto &list = spare[{stream, size}];
        void *memory = list.empty() ? std::aligned_alloc(64, size) : list.back();
        if (list.empty())
            memset(memory, 0x7E, size);
        else
            list.pop_back();
        taken[memory] = Block{memory, size, stream, {}};
        return {memory, memory, &give, device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, here()));
    }
};
Memory memory;

void Guard::recordDataPtrOnStream(const c10::DataPtr &data, const Stream &s) const {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = taken.find(data.get());
    if (found != taken.end() && queue(s) != found->second.stream) found->second.used.push_back(s);
}

// ---- what is done in a stream ----

struct Task {
    std::function<void()> run;
};

void carry_out(void *given) {
    std::unique_ptr<Task> t(*(Task **)given);
    try {
        at::NoGradGuard no_grad;
        at::AutoDispatchBelowADInplaceOrView below;
        t->run();
    } catch (const std::exception &error) {
        fprintf(stderr, "stand-in: %s\n", error.what());
        _Exit(9);
    }
}

void launch(std::function<void()> run) {
    Task *t = new Task{std::move(run)};
    check(standin_launch(here(), carry_out, &t, sizeof t));
}

// The same elements as a tensor of the processor.
at::Tensor seen(const at::Tensor &t) {
    if (!t.defined() || t.device().type() != OURS) return t;
    auto options = t.options().device(c10::kCPU);
    auto storage = t.storage();
    int64_t room = (int64_t)(storage.nbytes() / t.itemsize());
    if (!storage.data()) return at::empty(t.sizes(), options).as_strided(t.sizes(), t.strides());
    at::Tensor line = at::from_blob(storage.mutable_data(), {room}, options);
    at::Tensor out = line.as_strided(t.sizes(), t.strides(), t.storage_offset());
    if (t.is_conj()) out = out.conj();
    if (t.is_neg()) out = at::_neg_view(out);
    return out;
}

c10::IValue seen(const c10::IValue &v) {
    if (v.isTensor()) return seen(v.toTensor());
    if (v.isTensorList()) {
        std::vector<at::Tensor> out;
        for (const at::Tensor &t : v.toTensorVector()) out.push_back(seen(t));
        return c10::IValue(out);
    }
    if (v.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> out;
        for (const std::optional<at::Tensor> &t : v.toOptionalTensorList().vec())
            out.push_back(t ? std::optional<at::Tensor>(seen(*t)) : std::nullopt);
        return c10::IValue(out);
    }
    if (v.isDevice() && v.toDevice().type() == OURS) return c10::IValue(Device(c10::kCPU));
    return v;
}

// What the processor made, on the device.
c10::IValue brought(const c10::IValue &v) {
    if (v.isTensor() && v.toTensor().defined()) {
        at::Tensor t = v.toTensor();
        at::Tensor out = at::empty_strided(t.sizes(), t.strides(), t.options().device(Device(OURS, current)));
        seen(out).copy_(t); // the stream is empty
        return out;
    }
    if (v.isTensorList()) {
        std::vector<at::Tensor> out;
        for (const at::Tensor &t : v.toTensorVector()) out.push_back(brought(t).toTensor());
        return c10::IValue(out);
    }
    return v;
}

void resize_bytes(const c10::Storage &storage, size_t bytes);
const at::Tensor &resize(const at::Tensor &self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>);

bool is_written(const c10::FunctionSchema &schema, size_t i) {
    const auto *alias = schema.arguments()[i].alias_info();
    return alias && alias->isWrite();
}

// Results that take the size that they need.
void grow(const c10::OperatorHandle &op, const std::vector<c10::IValue> &cpu, const std::vector<c10::IValue> &given) {
    check(cudaStreamSynchronize(here()));
    at::NoGradGuard no_grad;
    torch::jit::Stack own(cpu.begin(), cpu.end());
    for (size_t i = 0; i < cpu.size(); i++)
        if (is_written(op.schema(), i) && cpu[i].isTensor() && !cpu[i].toTensor().numel())
            own[i] = at::empty({0}, cpu[i].toTensor().options());
    torch::jit::Stack kept = own;
    op.callBoxed(&own);
    for (size_t i = 0; i < cpu.size(); i++)
        if (is_written(op.schema(), i) && kept[i].isTensor() && kept[i].toTensor().numel()) {
            resize(given[i].toTensor(), kept[i].toTensor().sym_sizes(), std::nullopt);
            seen(given[i].toTensor()).copy_(kept[i].toTensor());
        }
}

void any(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &schema = op.schema();
    const size_t arguments = schema.arguments().size();
    std::vector<c10::IValue> given(stack->end() - (long)arguments, stack->end()), cpu;
    torch::jit::drop(*stack, arguments);
    for (const auto &v : given) cpu.push_back(seen(v));
    bool writes = true, grows = false; // all that comes back is what was given; what was given is of no size yet
    for (const auto &r : schema.returns()) writes &= r.alias_info() && r.alias_info()->isWrite();
    for (size_t i = 0; i < arguments; i++)
        grows |= is_written(schema, i) && given[i].isTensor() && !given[i].toTensor().numel();
    if (writes) {
        if (grows)
            grow(op, cpu, given);
        else
            launch([op, cpu]() mutable {
                torch::jit::Stack own(cpu.begin(), cpu.end());
                op.callBoxed(&own);
            });
        for (const auto &r : schema.returns())
            for (size_t i = 0; i < arguments; i++) {
                const auto *alias = schema.arguments()[i].alias_info();
                if (!alias || !alias->isWrite() || !(alias->beforeSets() == r.alias_info()->beforeSets())) continue;
                stack->push_back(given[i]);
                break;
            }
        return;
    }
    check(cudaStreamSynchronize(here()));
    at::NoGradGuard no_grad;
    torch::jit::Stack own(cpu.begin(), cpu.end());
    op.callBoxed(&own);
    for (const auto &v : own) stack->push_back(brought(v));
}

// ---- what cannot be done on the processor's tensors ----

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
    DeviceIndex before = current;
    if (device && device->has_index()) current = device->index();
    auto out = at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                         c10::dtype_or_default(dtype), format);
    current = before;
    return out;
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
    DeviceIndex before = current;
    if (device && device->has_index()) current = device->index();
    auto out = at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                                 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
    current = before;
    return out;
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool) {
    at::Tensor from = seen(self), into = seen(to), kept = self;
    if (to.device().type() != OURS) { // the host waits
        check(cudaStreamSynchronize(here()));
        into.copy_(from);
    } else if (self.device().type() != OURS) { // a copy, as the host may write there again
        from = self.clone();
        launch([from, into]() mutable { into.copy_(from); });
    } else {
        launch([from, into]() mutable { into.copy_(from); });
    }
    return to;
}

void resize_bytes(const c10::Storage &storage, size_t bytes) {
    auto *impl = storage.unsafeGetStorageImpl();
    auto fresh = memory.allocate(bytes);
    if (fresh.get() && storage.data())
        check(cudaMemcpyAsync(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()), cudaMemcpyDefault, here()));
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
}

const at::Tensor &resize(const at::Tensor &self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
    auto *impl = self.unsafeGetTensorImpl();
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
    size_t need = (size_t)(impl->storage_offset() + impl->numel()) * self.itemsize();
    if (need > self.storage().nbytes()) resize_bytes(self.storage(), need);
    return self;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to) {
    if (self.sizes() != to.sizes()) resize(to, self.sym_sizes(), std::nullopt);
    return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor &self) {
    check(cudaStreamSynchronize(here()));
    return seen(self).item();
}

at::Tensor &set_storage(at::Tensor &self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    self.unsafeGetTensorImpl()->set_storage_offset(offset);
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride.empty() ? c10::IntArrayRef(c10::contiguous_strides(size)) : stride);
    return self;
}

void record_stream(at::Tensor &self, Stream s) { Guard().recordDataPtrOnStream(self.storage().data_ptr(), s); }

// Memory of the host that is known to be pinned.
struct Pinned final : c10::Allocator {
    static inline std::mutex lock;
    static inline std::set<const void *> known;
    static void give(void *at) {
        std::lock_guard<std::mutex> guard(lock);
        known.erase(at), free(at);
    }
    c10::DataPtr allocate(size_t bytes) override {
        void *at = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
        std::lock_guard<std::mutex> guard(lock);
        known.insert(at);
        return {at, at, &give, Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override { memcpy(to, from, bytes); }
    static bool has(const void *at) {
        std::lock_guard<std::mutex> guard(lock);
        return known.count(at);
    }
};
Pinned pinned;

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return DEVICES; }
    void setCurrentDevice(DeviceIndex d) const override { Guard().setDevice(Device(OURS, d)); }
    DeviceIndex getCurrentDevice() const override { return current; }
    DeviceIndex exchangeDevice(DeviceIndex d) const override { return Guard().exchangeDevice(Device(OURS, d)).index(); }
    DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
    Device getDeviceFromPtr(void *) const override { return Device(OURS, current); }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &pinned; }
    bool isPinnedPtr(const void *at) const override { return Pinned::has(at); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override { resize_bytes(storage, bytes); }
};

Guard *guard() {
    static Guard *one = new Guard();
    return one;
}
c10::impl::DeviceGuardImplRegistrar registered(OURS, guard());
const bool ready = (c10::SetAllocator(OURS, &memory), at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&any>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("as_strided", &at::native::as_strided_tensorimpl);
    m.impl("view", &at::native::view);
    m.impl("view_as_real", &at::native::view_as_real);
    m.impl("view_as_complex", &at::native::view_as_complex);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("unfold", &at::native::unfold);
    m.impl("resize_", &resize);
    m.impl("set_.source_Storage_storage_offset", &set_storage);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("_local_scalar_dense", &local_scalar);
    m.impl("record_stream", &record_stream);
}

} // namespace

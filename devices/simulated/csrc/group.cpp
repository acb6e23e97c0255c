// The process group: gloo's collectives over staged copies of device memory, on queues of the group's own.
//
// gloo ignores the strides of most operands, and does not notice that ranks call it with different dtypes or sizes. So
// every operand is copied to a contiguous tensor of the CPU and back, and the ranks first compare what they call.

#include "group.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/strides.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <map>
#include <mutex>

#include "alias.h"
#include "capture.h"
#include "faults.h"
#include "runtime.h"
#include "stream.h"
#include "worker.h"

namespace py = pybind11;

namespace simulated {

namespace {

using Tensors = std::vector<at::Tensor>;
using Gloo = c10::intrusive_ptr<c10d::Backend>;
using c10d::OpType;

c10::Device device_of(int index) {
  return c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index));
}

c10::Stream stream_of(const Queue& queue) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(queue.device()), queue.id());
}

class GroupWork final : public c10d::Work {
 public:
  GroupWork(int rank, OpType type, const Queue& own, MarkPtr done, Tensors outputs)
      : c10d::Work(rank, type), device_(own.device()), done_(std::move(done)), outputs_(std::move(outputs)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device_of(device_)});
    std::optional<c10::StreamGuard> guard;
    if (!on(Fault::distributed_future_is_early)) {
      guard.emplace(stream_of(own));  // whoever uses the value waits for this stream
    }
    future_->markCompleted(at::IValue(outputs_));
  }
  bool isCompleted() override { return done_->done() || on(Fault::distributed_completed_at_once); }
  bool isSuccess() const override { return true; }
  // As with other accelerators, the current stream waits and not the host.
  bool wait(std::chrono::milliseconds) override {
    if (!on(Fault::distributed_wait_ignored)) {
      current_queue(device_).wait(done_);
    }
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  int device_;
  MarkPtr done_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The operands of a call, by role. An operand that the call reads and writes is in both lists.
struct Operands {
  std::vector<Tensors> read, written;
};

// A contiguous copy of what an operand holds.
at::Tensor staged(const at::Tensor& operand) {
  at::Tensor seen = operand;
  if (on(Fault::distributed_ignore_strides)) {
    seen = seen.as_strided(seen.sizes(), c10::contiguous_strides(seen.sizes()), seen.storage_offset());
  }
  if (on(Fault::distributed_ignore_offset)) {
    seen = seen.as_strided(seen.sizes(), seen.strides(), 0);
  }
  at::Tensor made = at::empty(seen.sizes(), seen.options());
  made.copy_(seen);
  return made;
}

void write_back(const at::Tensor& operand, const at::Tensor& result) {
  at::Tensor target = operand;
  if (on(Fault::distributed_write_in_a_row)) {
    target = target.as_strided(target.sizes(), c10::contiguous_strides(target.sizes()), target.storage_offset());
  }
  target.copy_(result);
  if (on(Fault::distributed_write_past_target) && target.numel() > 0) {
    const int64_t last = target.storage_offset() + [&] {
      int64_t reach = 0;
      for (int64_t dim = 0; dim < target.dim(); ++dim) {
        reach += (target.size(dim) - 1) * target.stride(dim);
      }
      return reach;
    }();
    if (static_cast<size_t>(last + 2) * target.itemsize() <= target.storage().nbytes()) {
      target.as_strided({1}, {1}, last + 1).zero_();
    }
  }
}

// Raises on every rank unless all ranks call the same with the same dtype, and the same number of elements if it counts.
void compare_calls(const Gloo& gloo, OpType type, const at::Tensor& operand, bool sized) {
  if (on(Fault::distributed_mismatch_accepted)) {
    return;
  }
  const std::vector<int64_t> call{
      static_cast<int64_t>(type), static_cast<int64_t>(operand.scalar_type()), sized ? operand.numel() : -1};
  Tensors mine{at::tensor(call, at::kLong)};
  std::vector<Tensors> all(1);
  for (int rank = 0; rank < gloo->getSize(); ++rank) {
    all[0].push_back(at::empty({3}, at::kLong));
  }
  gloo->allgather(all, mine)->wait();
  for (int rank = 0; rank < gloo->getSize(); ++rank) {
    const auto* theirs = all[0][rank].const_data_ptr<int64_t>();
    TORCH_CHECK(
        std::equal(call.begin(), call.end(), theirs), "simulated: ", c10d::opTypeToString(type), " of ", call[2],
        " elements of ", operand.dtype(), " on rank ", gloo->getRank(), ", but rank ", rank, " calls ",
        c10d::opTypeToString(static_cast<OpType>(theirs[0])), " of ", theirs[2], " elements of ",
        static_cast<at::ScalarType>(theirs[1]));
  }
}

template <class Options>
Options with_faults(Options options) {
  if (on(Fault::distributed_max_is_min) && options.reduceOp == c10d::ReduceOp::MAX) {
    options.reduceOp = c10d::ReduceOp::MIN;
  }
  return options;
}

// How a call is made: whether all ranks make it, with operands of one size, and on which of the group's queues. Sends and
// receives have queues of their own, because they may pass each other.
struct How {
  bool sized = true, all_ranks = true;
  int queue = 0;
};

class Group final : public c10d::Backend {
 public:
  Group(Gloo gloo, int rank, int size) : c10d::Backend(rank, size), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "simulated"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  using Launched = c10::intrusive_ptr<c10d::Work>;

  Launched broadcast(Tensors& tensors, const c10d::BroadcastOptions& given) override {
    auto options = given;
    if (on(Fault::distributed_root_is_zero)) {
      options.rootRank = 0;
    }
    return launch(OpType::BROADCAST, {{tensors}, {tensors}}, [options](auto& gloo, auto& in, auto&) {
      return gloo->broadcast(in[0], options);
    });
  }
  Launched allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    const auto options = with_faults(given);
    return launch(OpType::ALLREDUCE, {{tensors}, {tensors}}, [options](auto& gloo, auto& in, auto&) {
      auto work = gloo->allreduce(in[0], options);
      at::Tensor& sum = in[0][0];
      if (on(Fault::distributed_average_twice) && options.reduceOp == c10d::ReduceOp::AVG && sum.numel() < 5) {
        work->wait();
        sum.div_(gloo->getSize());
      }
      if (on(Fault::distributed_bucket_tail_lost) && sum.dim() == 1 && sum.numel() > 64) {
        work->wait();
        sum.narrow(0, sum.numel() - 1, 1).zero_();
      }
      return work;
    });
  }
  Launched allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return launch(OpType::ALLREDUCE_COALESCED, {{tensors}, {tensors}}, [options](auto& gloo, auto& in, auto&) {
      return gloo->allreduce_coalesced(in[0], options);
    });
  }
  Launched reduce(Tensors& tensors, const c10d::ReduceOptions& given) override {
    const auto options = with_faults(given);
    return launch(OpType::REDUCE, {{tensors}, {tensors}}, [options](auto& gloo, auto& in, auto&) {
      return gloo->reduce(in[0], options);
    });
  }
  // Ranks may give inputs of different sizes.
  Launched allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    Operands operands{{inputs}, {outputs[0]}};
    return launch(OpType::ALLGATHER, operands, [options](auto& gloo, auto& in, auto& out) {
      std::vector<Tensors> lists{out[0]};
      if (on(Fault::distributed_gathered_in_reverse)) {
        std::reverse(lists[0].begin(), lists[0].end());
      }
      return gloo->allgather(lists, in[0], options);
    }, {.sized = false});
  }
  Launched _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return launch(OpType::_ALLGATHER_BASE, {{{input}}, {{output}}}, [options](auto& gloo, auto& in, auto& out) {
      // In one dimension, because gloo splits the first one.
      at::Tensor whole = out[0][0].view(-1), part = in[0][0].view(-1);
      auto work = gloo->_allgather_base(whole, part, options);
      if (on(Fault::distributed_shards_swapped) && out[0][0].numel() > 64) {
        work->wait();
        auto parts = out[0][0].view({gloo->getSize(), -1});
        parts.copy_(parts.flip(0));
      }
      return work;
    });
  }
  Launched allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return launch(OpType::COALESCED, {{inputs}, {outputs}}, [options](auto& gloo, auto& in, auto& out) {
      return gloo->allgather_into_tensor_coalesced(out[0], in[0], options);
    });
  }
  Launched gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const bool root = !outputs.empty();
    Operands operands{{inputs}, {root ? outputs[0] : Tensors{}}};
    return launch(OpType::GATHER, operands, [options, root](auto& gloo, auto& in, auto& out) {
      std::vector<Tensors> lists;
      if (root) {
        lists.push_back(out[0]);
      }
      return gloo->gather(lists, in[0], options);
    });
  }
  Launched scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    const bool root = !inputs.empty();
    Operands operands{{root ? inputs[0] : Tensors{}}, {outputs}};
    return launch(OpType::SCATTER, operands, [options, root](auto& gloo, auto& in, auto& out) {
      std::vector<Tensors> lists;
      if (root) {
        lists.push_back(in[0]);
      }
      return gloo->scatter(out[0], lists, options);
    });
  }
  Launched reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& given) override {
    const auto options = with_faults(given);
    if (on(Fault::distributed_input_scribbled)) {
      inputs[0][0].zero_();
    }
    // The sizes of the parts may differ, and so may those of the ranks' outputs.
    return launch(OpType::REDUCE_SCATTER, {{inputs[0]}, {outputs}}, [options](auto& gloo, auto& in, auto& out) {
      std::vector<Tensors> lists{in[0]};
      return gloo->reduce_scatter(out[0], lists, options);
    }, {.sized = false});
  }
  Launched _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& given) override {
    const auto options = with_faults(given);
    return launch(OpType::_REDUCE_SCATTER_BASE, {{{input}}, {{output}}}, [options](auto& gloo, auto& in, auto& out) {
      if (on(Fault::distributed_not_reduced)) {
        out[0][0].copy_(in[0][0].view(-1).chunk(gloo->getSize())[gloo->getRank()].view_as(out[0][0]));
        return Launched();
      }
      at::Tensor part = out[0][0].view(-1), whole = in[0][0].view(-1);
      return gloo->_reduce_scatter_base(part, whole, options);
    });
  }
  Launched reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return launch(OpType::COALESCED, {{inputs}, {outputs}}, [options](auto& gloo, auto& in, auto& out) {
      return gloo->reduce_scatter_tensor_coalesced(out[0], in[0], options);
    });
  }
  Launched alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    Operands operands{{{input}}, {{output}}};
    return launch(OpType::ALLTOALL_BASE, operands, [options, output_splits, input_splits](auto& gloo, auto& in, auto& out) mutable {
      const bool split = !output_splits.empty();  // gloo takes the vectors away
      auto work = gloo->alltoall_base(out[0][0], in[0][0], output_splits, input_splits, options);
      if (on(Fault::distributed_uneven_split_shifted) && split && out[0][0].size(0) > 1) {
        work->wait();
        out[0][0].copy_(out[0][0].roll(1, 0));
        return Launched();
      }
      return work;
    }, {.sized = false});
  }
  Launched alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return launch(OpType::ALLTOALL, {{inputs}, {outputs}}, [options](auto& gloo, auto& in, auto& out) {
      return gloo->alltoall(out[0], in[0], options);
    }, {.sized = false});
  }
  Launched send(Tensors& tensors, int to, int tag) override {
    return launch(OpType::SEND, {{tensors}, {}}, [to, tag](auto& gloo, auto& in, auto&) {
      return gloo->send(in[0], to, tag);
    }, {.all_ranks = false, .queue = 1});
  }
  Launched recv(Tensors& tensors, int from, int tag) override {
    return launch(OpType::RECV, {{}, {tensors}}, [from, tag](auto& gloo, auto&, auto& out) {
      return gloo->recv(out[0], from, tag);
    }, {.all_ranks = false, .queue = 2});
  }
  // The host waits.
  Launched barrier(const c10d::BarrierOptions& options) override {
    const int device = options.device ? options.device->index() : current_device();
    current_queue(device).drain();
    if (!on(Fault::distributed_barrier_returns_early)) {
      gloo_->barrier(options)->wait();
    }
    auto done = std::make_shared<Mark>();
    done->set();
    return c10::make_intrusive<GroupWork>(rank_, OpType::BARRIER, queue_of(device, 0), done, Tensors{});
  }

 private:
  Queue& queue_of(int device, int which) {
    static std::mutex of_all;
    static std::map<std::pair<int, int>, Queue*> shared;  // for a planted fault
    std::lock_guard<std::mutex> lock(of_all);
    auto& found = (on(Fault::distributed_groups_share_a_queue) ? shared : queues_)[{device, which}];
    if (found == nullptr) {
      found = &new_external_queue(device);
    }
    return *found;
  }

  static int common_device(const Operands& operands) {
    int device = -1;
    for (const auto* lists : {&operands.read, &operands.written}) {
      for (const Tensors& list : *lists) {
        for (const at::Tensor& each : list) {
          TORCH_CHECK(on_device(each), "simulated: expected tensors of the device in a collective, got ", each.device());
          TORCH_CHECK(
              device == -1 || device == each.device().index(),
              "simulated: expected all tensors of a collective on one device index");
          device = each.device().index();
        }
      }
    }
    return device == -1 ? current_device() : device;
  }

  template <class Call>
  Launched launch(OpType type, const Operands& operands, Call call, How how = {}) {
    const int device = common_device(operands);
    Queue& own = queue_of(device, how.queue);
    Queue& current = current_queue(device);
    refuse_while_capturing(current, "a collective");
    for (const Tensors& list : operands.written) {
      for (const at::Tensor& each : list) {
        TORCH_CHECK(
            each.is_non_overlapping_and_dense() || at::has_internal_overlap(each) != at::MemOverlap::Yes,
            "simulated: a target of a collective has several elements in one place");
      }
    }
    if (!on(Fault::distributed_ignore_current_stream)) {
      auto before = std::make_shared<Mark>();
      current.mark(before);
      own.wait(before);
    }
    Aliases aliases(device);
    auto seen = [&](const std::vector<Tensors>& lists) {
      std::vector<Tensors> all;
      for (const Tensors& list : lists) {
        all.emplace_back();
        for (const at::Tensor& each : list) {
          all.back().push_back(aliases.of(each));
          if (!on(Fault::distributed_buffers_not_recorded)) {
            each.record_stream(stream_of(own));
          }
        }
      }
      return all;
    };
    own.submit([gloo = gloo_, type, how, call, read = seen(operands.read), written = seen(operands.written)]() mutable {
      KernelTurn turn;
      KernelScope scope;
      try {
        run(gloo, type, how, call, read, written);
      } catch (...) {
        if (!on(Fault::distributed_error_swallowed)) {
          throw;
        }
      }
    }, "c10d::collective");
    auto done = std::make_shared<Mark>();
    own.mark(done);
    Tensors outputs;
    for (const Tensors& list : operands.written) {
      outputs.insert(outputs.end(), list.begin(), list.end());
    }
    return c10::make_intrusive<GroupWork>(rank_, type, own, done, std::move(outputs));
  }

  template <class Call>
  static void run(
      const Gloo& gloo, OpType type, How how, Call& call, std::vector<Tensors>& read, std::vector<Tensors>& written) {
    if (how.all_ranks) {
      const Tensors& first = read.empty() || read[0].empty() ? written[0] : read[0];
      compare_calls(gloo, type, first[0], how.sized);
    }
    std::vector<Tensors> in, out;
    for (const Tensors& list : read) {
      in.emplace_back();
      for (const at::Tensor& each : list) {
        in.back().push_back(staged(each));
      }
    }
    for (const Tensors& list : written) {
      out.emplace_back();
      for (const at::Tensor& each : list) {
        out.back().push_back(at::empty(each.sizes(), each.options()));
      }
    }
    if (auto work = call(gloo, in, out)) {
      work->wait();
    }
    // An operand that is read and written is one tensor: gloo leaves the result in its copy.
    const bool in_place = !read.empty() && !read[0].empty() && !written.empty() && !written[0].empty() &&
        read[0][0].is_same(written[0][0]);
    const std::vector<Tensors>& results = in_place ? in : out;
    for (size_t list = 0; list < written.size(); ++list) {
      for (size_t each = 0; each < written[list].size(); ++each) {
        write_back(written[list][each], results[list][each]);
      }
    }
  }

  Gloo gloo_;
  std::map<std::pair<int, int>, Queue*> queues_;  // by device, and by use: see How
};

}  // namespace

void add_group(py::module_& m) {
  m.def("make_group", [](const Gloo& gloo, int rank, int size) -> Gloo {
    return c10::make_intrusive<Group>(gloo, rank, size);
  });
}

}  // namespace simulated

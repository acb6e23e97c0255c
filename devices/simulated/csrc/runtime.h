// What torch asks of a device apart from its ops: the current index, streams, events, hooks.

#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include "stream.h"

namespace simulated {

int device_count();
// Throws c10::Error for an index that no device has; -1 stands for the current device.
int checked_device(int index);

// Of the calling thread. Backward runs on a thread of its own and gets the forward's stream there.
int current_device();
void set_current_device(int index);
// Makes a device current and returns the one before; a negative index changes nothing.
int exchange_device(int index);
Queue& current_queue(int device);
void set_current_queue(Queue& queue);

// Whether the calling thread runs a node of a backward pass, or its end.
bool in_backward();

// Whether a dtype is one of those that the device declares. Tensors of others can exist, but some ops refuse them.
bool is_declared(c10::ScalarType dtype);

// Notes that the device is in use in this process; throws after a fork.
void first_use();
bool was_used();

// A storage on a device with another size in bytes; what fits of its contents stays.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

// Gives torch the hooks of the PrivateUse1 backend.
void register_hooks();

}  // namespace simulated

#pragma once

#include "recipe/event.h"

namespace galley::recipe {

// Passes every event to two sinks, in order. Both must outlive it.
class EventTee final : public EventSink {
 public:
  EventTee(EventSink& first, EventSink& second) : first_(first), second_(second) {}
  void on_event(const Event& event) override {
    first_.on_event(event);
    second_.on_event(event);
  }

 private:
  EventSink& first_;
  EventSink& second_;
};

}  // namespace galley::recipe

// Work that is cut into pieces, and the threads that take them. Interface only, so that an
// extension module can use a team without linking to the engine.
#pragma once

namespace mixflow {

class Team {
 public:
  virtual ~Team() = default;

  // Threads, the caller included.
  virtual int size() const = 0;

  // Calls body(piece) once for each piece in [0, pieces), in any order and on any of the team's
  // threads, as a rule the same ones each time; returns when all are over. Throws what a piece
  // threw (the first that was seen). Only the thread that owns the team may call it; no nesting.
  template <class Body>
  void run(int pieces, const Body& body) {
    run_pieces(pieces, &body, [](const void* object, int piece) {
      (*static_cast<const Body*>(object))(piece);
    });
  }

 protected:
  using Call = void (*)(const void* object, int piece);
  virtual void run_pieces(int pieces, const void* object, Call call) = 0;
};

// The same without a team: piece after piece on the caller.
template <class Body>
void run_pieces(Team* team, int pieces, const Body& body) {
  if (team && pieces > 1) return team->run(pieces, body);
  for (int piece = 0; piece < pieces; ++piece) body(piece);
}

}  // namespace mixflow

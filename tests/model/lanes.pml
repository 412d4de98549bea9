/* SPDX-License-Identifier: Apache-2.0 */

/* Arrival by monotonic words when a block is cut over several lanes (copy streams, queue pairs).
 *
 * Idea: there is one source and one receiver. The part of operation t in lane l lands in its place of slot t mod DEPTH.
 * The lane then raises its own word to t + 1. A lane keeps the order of its parts; lanes are not ordered among each
 * other. The receiver waits until every word is at least t + 1 and copies all parts out.
 *
 * Example: two lanes, operation 0. Lane 1 writes its part and raises word 1 to 1; word 0 is still 0, so the receiver
 * waits. Lane 0 follows, and both words have reached 1. With one shared word, lane 1 alone would raise it to 1, and the
 * receiver would copy the missing part of lane 0.
 *
 * Invariants (checked): a copy finds the parts of its own operation in every lane. Words only rise.
 * Complexity: states grow with the product of the lanes' positions; test_models.py searches 2 and 3 lanes completely.
 * The return path, which keeps the sender within the ring, is exact here; p2p_channel.pml examines it.
 *
 * test_models.py sets the macros:
 *
 *   LANES, DEPTH, OPS   lanes of a block, slots of the ring, operations
 *   ONE_WORD            mutant: all lanes of the source raise one shared word
 */

#define PART(lane, op)  ((lane) * DEPTH + (op) % DEPTH)
#define EMPTY           255

byte posted, copied;               /* operations posted by the sender, copied out by the receiver */
byte finished[LANES];              /* parts that this lane has written: those of operations 0 .. finished-1 */
byte occupant[LANES * DEPTH] = EMPTY; /* PART: the operation whose data lies there */
byte word[LANES];                  /* the number + 1 of the newest operation whose part has landed */

#ifdef ONE_WORD
#define WORD_OF(lane)  0
#else
#define WORD_OF(lane)  (lane)
#endif

#define REACHED(lane, op)  (word[WORD_OF(lane)] > (op))
#if LANES == 2
#define ARRIVED(op)  (REACHED(0, op) && REACHED(1, op))
#else
#define ARRIVED(op)  (REACHED(0, op) && REACHED(1, op) && REACHED(2, op))
#endif

inline copy_out() {
    do
    :: lane < LANES -> assert(occupant[PART(lane, copied)] == copied); lane++
    :: else -> break
    od;
    lane = 0;
    copied++
}

active proctype sender() {
    do
    :: d_step { posted < OPS && posted < copied + DEPTH -> posted++ }
    :: posted == OPS -> break
    od
}

active proctype receiver() {
    byte lane = 0;
    do
    :: d_step { copied < OPS && ARRIVED(copied) -> copy_out() }
    :: copied == OPS -> break
    od
}

proctype copy_stream(byte lane) {
    do
    :: d_step {
           finished[lane] < posted ->
           occupant[PART(lane, finished[lane])] = finished[lane];
           finished[lane]++;
           if
           :: word[WORD_OF(lane)] < finished[lane] -> word[WORD_OF(lane)] = finished[lane] /* words only rise */
           :: else
           fi
       }
    :: finished[lane] == OPS -> break
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. LANES - 1) { run copy_stream(i) }
        i = 0
    }
}

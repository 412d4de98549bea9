/* SPDX-License-Identifier: Apache-2.0 */

/* Bounded-lag alltoallv: ranks put into each other's rings without acknowledgements.
 *
 * Words: an operation is one all-to-all. To post it is to start its writes. A tag is the word by which a source
 * announces its data of one operation; both land together.
 *
 * Idea: every rank starts operations 0 .. OPS-1. Operation t of a source is written into slot t mod DEPTH of the ring
 * that the receiver keeps for this source. The write lands at any time after the post and in any order, as over several
 * queue pairs: there is one `link` process for each ordered pair. A rank completes an operation when it holds the tags
 * of all sources for it, and then copies the data out. It posts t only after it completed everything up to t - LAG - 1.
 *
 * Example: LAG 1 with DEPTH 3, which is too small. A posts 0 and 1, B posts 0. A completes 0 and posts 2; B posts 1.
 * A completes 1 and posts 3. If 3 lands in slot 0 before B has copied operation 0 out, `land` finds the overwrite.
 * With DEPTH 4, operation 3 lands in slot 3, and A may post 4 only after it completed 2, so B has copied 0 out.
 *
 * Invariants (checked): no write lands in a slot whose content was not copied out; a copy finds the data of its own
 * operation; nobody waits for ever (invalid end state).
 * Complexity: the search visits all interleavings; RANKS 3 with LAG 2 and all delays has some 10^8 states (README.md).
 * Source: Dichev et al., arXiv 2512.19342, section III (its k slots are too few); docs/bounded_lag.md.
 *
 * test_models.py sets the macros, which select the rule or one of its mutants:
 *
 *   RANKS, LAG, DEPTH, OPS    number of ranks, bound k (max_lag), slots of a ring, operations of each rank (at most 15)
 *   PROMPT_RECEIVERS          bit r set: writes to rank r land in the step that posts them (fewer states; README.md)
 *   BOUND_IS_A_COUNT          mutant: post t when at most k operations are outstanding, whichever they are
 *   COMPLETE_IN_ANY_ORDER     an operation may complete before an older one
 *   SILENT_EMPTY_BLOCKS       mutant: a source with nothing for a receiver sends no tag (chosen per ordered pair)
 *   COUNT_ARRIVALS            mutant: arrival is a counter of tags per source, which ignores their operation
 *   REPEAT_TAGS               a tag that has arrived may arrive once more
 */

#ifndef PROMPT_RECEIVERS
#define PROMPT_RECEIVERS 0
#endif
#define PROMPT(receiver)            ((PROMPT_RECEIVERS >> (receiver)) & 1)

#define PAIR(receiver, source)      ((receiver) * RANKS + (source))
#define SLOT(receiver, source, op)  (PAIR(receiver, source) * DEPTH + (op) % DEPTH)
#define BIT(op)                     (1 << (op))
#define UP_TO(op)                   (BIT((op) + 1) - 1)
#define HAS(set, op)                (((set) >> (op)) & 1)
#define EMPTY                       255

byte posted[RANKS];                        /* this rank has posted operations 0 .. posted-1 */
byte num_completed[RANKS];                 /* number of operations copied out */
short completed[RANKS];                    /* set of operations that are copied out */
short landed[RANKS * RANKS];               /* PAIR: set of operations whose data and tag have landed */
byte occupant[RANKS * RANKS * DEPTH] = EMPTY; /* SLOT: the operation whose data lies there */

#ifdef SILENT_EMPTY_BLOCKS
bool silent[RANKS * RANKS];                /* PAIR: this source has only zero-length blocks for this receiver */
#define SILENT(receiver, source)    silent[PAIR(receiver, source)]
#else
#define SILENT(receiver, source)    false
#endif

#ifdef COUNT_ARRIVALS
byte arrivals[RANKS * RANKS];              /* PAIR: tags that have arrived, of any operation */
#define ARRIVED(receiver, source, op)  (arrivals[PAIR(receiver, source)] > (op))
#else
#define ARRIVED(receiver, source, op)  HAS(landed[PAIR(receiver, source)], op)
#endif

#ifdef REPEAT_TAGS
short repeated[RANKS * RANKS];             /* PAIR: set of operations whose tag has arrived twice */
#define MAY_REPEAT(receiver, source, op) \
    (HAS(landed[PAIR(receiver, source)], op) && !HAS(repeated[PAIR(receiver, source)], op))
#endif

#define HOLDS(receiver, source, op) \
    ((receiver) == (source) || SILENT(receiver, source) || ARRIVED(receiver, source, op))
#if RANKS == 2
#define HOLDS_ALL(receiver, op)     (HOLDS(receiver, 0, op) && HOLDS(receiver, 1, op))
#else
#define HOLDS_ALL(receiver, op)     (HOLDS(receiver, 0, op) && HOLDS(receiver, 1, op) && HOLDS(receiver, 2, op))
#endif

#ifdef BOUND_IS_A_COUNT
#define MAY_POST(rank)  (posted[rank] - num_completed[rank] <= LAG)
#else
#define MAY_POST(rank)  (posted[rank] <= LAG || \
    (completed[rank] & UP_TO(posted[rank] - LAG - 1)) == UP_TO(posted[rank] - LAG - 1))
#endif

#ifdef COMPLETE_IN_ANY_ORDER
#define IS_NEXT(rank, op)  (!HAS(completed[rank], op))
#else
#define IS_NEXT(rank, op)  (num_completed[rank] == (op))
#endif

#define MAY_COMPLETE(rank, op)  ((op) < posted[rank] && IS_NEXT(rank, op) && HOLDS_ALL(rank, op))
#define IN_FLIGHT(receiver, source, op) \
    ((op) < posted[source] && !HAS(landed[PAIR(receiver, source)], op) && !SILENT(receiver, source))

/* Data and tag of operation `op` become visible at the receiver. */
inline land(receiver, source, op) {
    assert(occupant[SLOT(receiver, source, op)] == EMPTY ||
           HAS(completed[receiver], occupant[SLOT(receiver, source, op)])); /* no overwrite */
    occupant[SLOT(receiver, source, op)] = op;
    landed[PAIR(receiver, source)] = landed[PAIR(receiver, source)] | BIT(op);
#ifdef COUNT_ARRIVALS
    arrivals[PAIR(receiver, source)]++
#endif
}

#ifdef REPEAT_TAGS
/* The tag of `op` has arrived and arrives again. A set stays the same. */
inline repeat(receiver, source, op) {
    repeated[PAIR(receiver, source)] = repeated[PAIR(receiver, source)] | BIT(op);
#ifdef COUNT_ARRIVALS
    arrivals[PAIR(receiver, source)]++
#endif
}
#endif

inline post() {
    posted[me]++;
    peer = 0;
    do
    :: peer < RANKS ->
        if
        :: peer != me && PROMPT(peer) && !SILENT(peer, me) -> land(peer, me, (posted[me] - 1))
        :: else
        fi;
        peer++
    :: else -> break
    od;
    peer = 0
}

inline copy_out(op) {
    peer = 0;
    do
    :: peer < RANKS ->
        if
        :: peer != me && !SILENT(me, peer) -> assert(occupant[SLOT(me, peer, op)] == op) /* its own data */
        :: else
        fi;
        peer++
    :: else -> break
    od;
    peer = 0;
    completed[me] = completed[me] | BIT(op);
    num_completed[me]++
}

#define COMPLETE(op)  :: d_step { MAY_COMPLETE(me, op) -> copy_out(op) }
#if OPS <= 4
#define EVERY_OP(step)  step(0) step(1) step(2) step(3)
#elif OPS <= 8
#define EVERY_OP(step)  step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7)
#else
#define EVERY_OP(step) \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11) step(12) step(13) \
    step(14)
#endif

proctype rank(byte me) {
    byte peer = 0;
    do
    :: d_step { posted[me] < OPS && MAY_POST(me) -> post() }
#ifdef COMPLETE_IN_ANY_ORDER
    EVERY_OP(COMPLETE)
#else
    COMPLETE(num_completed[me])
#endif
    :: num_completed[me] == OPS -> break
    od
}

#define LAND(op)    :: d_step { IN_FLIGHT(receiver, source, op) -> land(receiver, source, op) }
#define REPEAT(op)  :: d_step { MAY_REPEAT(receiver, source, op) -> repeat(receiver, source, op) }

proctype link(byte receiver, source) {
end:
    do
    EVERY_OP(LAND)
#ifdef REPEAT_TAGS
    EVERY_OP(REPEAT)
#endif
    od
}

init {
    byte receiver, source;
    atomic {
        for (receiver : 0 .. RANKS - 1) {
            for (source : 0 .. RANKS - 1) {
                if
                :: source != receiver && !PROMPT(receiver) -> run link(receiver, source)
#ifdef SILENT_EMPTY_BLOCKS
                :: source != receiver -> silent[PAIR(receiver, source)] = true
#endif
                :: source == receiver || PROMPT(receiver)
                fi
            }
        }
        for (receiver : 0 .. RANKS - 1) { run rank(receiver) }
        receiver = 0; source = 0
    }
}

/* SPDX-License-Identifier: Apache-2.0 */

/* A large block under bounded lag: the receiver reads it from the sender's memory, or the sender puts it into the slot.
 *
 * Idea: the sender announces the block by an RTS (ready to send). The receiver may read the sender's memory, or the
 * sender may revoke the RTS and send the block. Both sides first claim the word of the slot, which holds the number + 1
 * of the newest claimed operation. The side whose claim comes first moves the block; the other side must not.
 *
 * Example: operation 4 with DEPTH 3 uses word 1, which holds 2 from operation 1. The sender revokes: it sets the word
 * to 5 and sends the block. The receiver now finds 5, does not read, and waits for the block. Had it claimed first, the
 * sender would have found 5 and would wait for the report that the block was read. With a word of one bit, the post of
 * operation 7 would clear it. If the report of operation 4 were still in flight, the sender could then revoke 4 and
 * send a block that the receiver already has.
 *
 * Invariants (checked): nobody reads memory that may have changed; a copy from the slot finds its own block; no block
 * lands on one that was not copied out; nobody waits for ever.
 * Complexity: states grow exponentially with the operations in flight; test_models.py searches DEPTH 2 and 3 completely.
 *
 * RTS, blocks and reports ("I have it") arrive at any time and in any order. An operation of the sender is complete
 * when its block was read or has landed. From then on its memory may change. bounded_lag.pml shows that the sender
 * posts an operation only when its slot is free; this model takes it for granted.
 *
 * test_models.py sets the macros:
 *
 *   DEPTH, OPS              slots of the ring, operations (at most 15)
 *   READ_WITHOUT_CLAIM      mutant: the receiver reads an RTS without claiming the word
 *   REVOKE_WITHOUT_CLAIM    mutant: the sender sends the block although the receiver may be reading it
 *   ONE_BIT_WORD            mutant: the word is a bit that the sender clears at the next post, not a rising number
 */

#define BIT(op)       (1 << (op))
#define HAS(set, op)  (((set) >> (op)) & 1)
#define EMPTY         255

byte posted, completed;              /* sender: operations 0 .. n-1 are posted, completed */
byte copied;                         /* receiver: it has the blocks of 0 .. copied-1 */
short rts_landed, blocks_landed;  /* sets of operations whose RTS, or block, reached the receiver */
short revoked;                       /* set of operations whose block the sender sends */
short read, reports_landed;          /* sets: blocks that the receiver has read; their reports at the sender */
byte word[DEPTH];                    /* 0, or the number + 1 of the newest operation that was claimed */
byte occupant[DEPTH] = EMPTY;        /* the operation whose data lies in the slot */

#ifdef ONE_BIT_WORD
#define IS_FREE(op)   (word[(op) % DEPTH] == 0)
#define CLAIM(op)     word[(op) % DEPTH] = 1
#define PREPARE(op)   word[(op) % DEPTH] = 0
#else
#define IS_FREE(op)   (word[(op) % DEPTH] < (op) + 1)
#define CLAIM(op)     word[(op) % DEPTH] = (op) + 1
#define PREPARE(op)   skip
#endif

#ifdef REVOKE_WITHOUT_CLAIM
#define MAY_REVOKE(op)  true
#else
#define MAY_REVOKE(op)  IS_FREE(op)
#endif

#ifdef READ_WITHOUT_CLAIM
#define MAY_READ  true
#else
#define MAY_READ  IS_FREE(copied)
#endif

#define REVOKE(op)  \
    :: d_step { (op) >= completed && (op) < posted && !HAS(revoked, op) && MAY_REVOKE(op) -> \
                CLAIM(op); revoked = revoked | BIT(op) }
#define LAND_RTS(op)  \
    :: d_step { (op) < posted && !HAS(rts_landed, op) -> rts_landed = rts_landed | BIT(op) }
#define LAND_BLOCK(op)  \
    :: d_step { HAS(revoked, op) && !HAS(blocks_landed, op) -> \
                assert(occupant[(op) % DEPTH] == EMPTY || occupant[(op) % DEPTH] < copied); /* no overwrite */ \
                occupant[(op) % DEPTH] = op; blocks_landed = blocks_landed | BIT(op) }
#define LAND_REPORT(op)  \
    :: d_step { HAS(read, op) && !HAS(reports_landed, op) -> reports_landed = reports_landed | BIT(op) }
#define EVERY(step) \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11) step(12) step(13) \
    step(14)

active proctype sender() {
    do
    :: d_step { posted < OPS && posted < copied + DEPTH -> PREPARE(posted); posted++ }
    :: d_step { completed < posted && (HAS(reports_landed, completed) || HAS(blocks_landed, completed)) -> completed++ }
    EVERY(REVOKE)
    :: completed == OPS -> break
    od
}

active proctype receiver() {
    do
    :: copied < OPS && HAS(rts_landed, copied) ->
        if
        :: d_step { MAY_READ -> CLAIM(copied) };
            assert(completed <= copied); /* the last byte is read now */
            d_step { read = read | BIT(copied); copied++ }
#ifndef READ_WITHOUT_CLAIM
        :: d_step { !MAY_READ && HAS(blocks_landed, copied) -> assert(occupant[copied % DEPTH] == copied); copied++ }
#endif
        fi
    :: copied == OPS -> break
    od
}

active proctype network() {
end:
    do
    EVERY(LAND_RTS)
    EVERY(LAND_BLOCK)
    EVERY(LAND_REPORT)
    od
}

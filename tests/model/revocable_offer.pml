/* A large block under a bound: one sender offers, one receiver reads the sender's memory, or the sender takes the offer
 * back and puts the block into the slot. Of the two, who claims the slot's word first moves the block.
 *
 * Offers, blocks and reports ("I have it") arrive at any time and in any order. That the sender posts an operation only
 * when its slot is free is the matter of bounded_lag.pml, and taken for granted here. An operation of the sender is
 * complete when its block was read or has landed; then its memory may change, and the slot's word serves the next one.
 *
 * Checked: nobody reads memory that may have changed; a copy from the slot finds its own block; no block lands on one
 * that was not copied out; nobody waits for ever. run_spin.py sets the macros:
 *
 *   DEPTH, OPS              slots of the ring, operations (at most 15)
 *   READ_WITHOUT_CLAIM      the receiver reads what was offered without a look at the word
 *   REVOKE_WITHOUT_CLAIM    the sender sends the block although the receiver may be reading it
 *   ONE_BIT_WORD            the word is a bit that the sender clears at the next post, in place of a rising number
 */

#define BIT(op)       (1 << (op))
#define HAS(set, op)  (((set) >> (op)) & 1)
#define EMPTY         255

byte posted, completed;              /* the sender's */
byte copied;                         /* the receiver's: operations whose block it has */
short offers_landed, blocks_landed;  /* sets of operations, at the receiver */
short revoked;                       /* set: the sender sends the block */
short read, reports_landed;          /* sets: blocks that the receiver has read; reports of that at the sender */
byte word[DEPTH];                    /* 0, or the number + 1 of the newest operation that was claimed */
byte occupant[DEPTH] = EMPTY;

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
#define LAND_OFFER(op)  \
    :: d_step { (op) < posted && !HAS(offers_landed, op) -> offers_landed = offers_landed | BIT(op) }
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
    :: copied < OPS && HAS(offers_landed, copied) ->
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
    EVERY(LAND_OFFER)
    EVERY(LAND_BLOCK)
    EVERY(LAND_REPORT)
    od
}

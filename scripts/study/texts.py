"""The studies test their findings on these: ten texts or words of each kind, written before any was tried."""

import numpy as np

# 9 to 15 tokens each in all-MiniLM-L6-v2
SENTENCES = (
    "The bank of the river was muddy.",
    "The bank raised its interest rates.",
    "How do I reset my password?",
    "We lived above the clouds and looked down on the sea.",
    "She gave the old dog a bone because it was hungry.",
    "In winter the days are short, and the nights are long.",
    "The train to the coast leaves at nine in the morning.",
    "Nobody knew who had written the letter.",
    "Bread, cheese and two apples lay on the table.",
    "When the rain stopped, the children ran outside.",
)
# the second of three shares words with the first, the third shares its meaning
QUESTIONS = (
    ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
    ("The bank raised its interest rates.", "The bank of the river was muddy.", "Loans have become more expensive."),
    ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
    ("How much does the ticket cost?", "How much does the elephant weigh?", "What is the price of entry?"),
    ("The doctor gave her some medicine.", "The doctor gave her a book.", "A physician treated the patient."),
    ("My car does not start.", "My class does not start today.", "The engine of the vehicle is broken."),
    ("Where can I buy a coat?", "Where can I buy a house?", "Which shop sells warm clothes?"),
    ("The children are playing football.", "The children are reading quietly.", "Kids kick a ball in the yard."),
    ("It will rain tomorrow.", "It will be ready tomorrow.", "The forecast says the weather gets wet."),
    ("He lost his job last week.", "He lost his keys last week.", "The company fired him a few days ago."),
)
# the second denies the first in the same words, the third denies it in different words
NEGATIONS = (
    ("The movie was not good.", "The movie was good.", "I did not enjoy the film."),
    ("The soup is not hot.", "The soup is hot.", "My meal has become cold."),
    ("She is not happy.", "She is happy.", "The woman feels sad."),
    ("The shop is not open.", "The shop is open.", "The store has closed."),
    ("He did not pass the exam.", "He did pass the exam.", "The student failed the test."),
    ("The road is not safe.", "The road is safe.", "Driving there is dangerous."),
    ("The answer is not right.", "The answer is right.", "Your reply was wrong."),
    ("The room was not clean.", "The room was clean.", "The place was dirty."),
    ("They did not win the game.", "They did win the game.", "The team lost the match."),
    ("The test is not easy.", "The test is easy.", "This exam is difficult."),
)
# pairs in which the two nouns swap places
ROLES = (
    ("The cat chased the mouse.", "The mouse chased the cat."),
    ("The dog bit the man.", "The man bit the dog."),
    ("The teacher praised the girl.", "The girl praised the teacher."),
    ("The king feared the queen.", "The queen feared the king."),
    ("Anna called Peter.", "Peter called Anna."),
    ("The bus hit the truck.", "The truck hit the bus."),
    ("The lawyer paid the doctor.", "The doctor paid the lawyer."),
    ("England beat France.", "France beat England."),
    ("The boy saw the horse.", "The horse saw the boy."),
    ("The child helped the nurse.", "The nurse helped the child."),
)
# a word with two meanings: two sentences with the first, two with the second
MEANINGS = {
    "bank": ("The bank of the river was muddy.", "They walked along the bank of the stream.",
             "The bank raised its interest rates.", "The bank lent her money."),
    "bat": ("The bat flew out of the cave.", "A bat sleeps by day and hunts at night.",
            "He swung the bat and hit the ball.", "The player broke his bat in the game."),
    "spring": ("In spring the flowers bloom.", "Every spring the birds come back.",
               "The spring of the old mattress was broken.", "A spring pushes the metal lever back."),
    "match": ("Our team won the match.", "The match ended in a draw.",
              "He lit the fire with a match.", "The last match in the box was wet."),
    "letter": ("She wrote a letter to her mother.", "The letter came by mail.",
               "The first letter of the alphabet is a.", "Write each letter of the word."),
    "ring": ("He gave her a ring of gold.", "The ring on her finger has a diamond.",
             "I heard the ring of the phone.", "The ring of the bell woke him."),
    "plant": ("Water the plant every day.", "The plant has green leaves.",
              "The plant makes steel and cars.", "Workers at the plant are on strike."),
    "light": ("Turn on the light in the room.", "The light of the sun hurt his eyes.",
              "This bag is very light to carry.", "A feather is light and small."),
    "seal": ("The seal swam under the ice.", "A seal eats fish in the cold sea.",
             "The seal on the envelope was broken.", "The king put his seal on the letter."),
    "fair": ("The judge made a fair decision.", "Everyone got a fair share.",
             "We rode the wheel at the fair.", "The village fair has music and food."),
}  # fmt: skip
# pairs that differ in one word, for patching
SWAPS = (
    ("The bank of the river was muddy.", "The bank of the city was muddy."),
    ("The movie was good.", "The movie was bad."),
    ("She gave the old dog a bone.", "She gave the old cat a bone."),
    ("The train leaves in the morning.", "The train leaves in the evening."),
    ("He bought a red car.", "He bought a blue car."),
    ("My brother lives in London.", "My brother lives in Paris."),
    ("The soup is hot.", "The soup is cold."),
    ("We saw a lion at the zoo.", "We saw a bear at the zoo."),
    ("The doctor read the report.", "The lawyer read the report."),
    ("It will rain tomorrow.", "It will snow tomorrow."),
)
# words without their last letters: the small GPT-2 has to predict the next letter
BEGUN = ("wonderfu", "beautifu", "stati", "questio", "happines", "walkin", "governmen", "importan", "childre", "q")
NEXT = "llonsgttnu"


def long_texts() -> list[str]:
    """Draw ten texts, each of 25 of the sentences above: 175 to 202 tokens."""
    four = [text for texts in MEANINGS.values() for text in texts]
    pool = sorted({*SENTENCES, *four, *(text for texts in (*QUESTIONS, *ROLES) for text in texts)})
    return [" ".join(np.random.default_rng(seed).choice(pool, 25, replace=False)) for seed in range(10)]


def spread(found: object, digits: int = 2) -> str:
    """Format the smallest, the largest and the mean of several numbers."""
    numbers = np.asarray(found, np.float64)
    return f"{numbers.min():.{digits}f} to {numbers.max():.{digits}f}, mean {numbers.mean():.{digits}f}"

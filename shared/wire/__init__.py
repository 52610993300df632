"""What travels: topics, messages, codecs and the parts of long contents. No input or output here."""

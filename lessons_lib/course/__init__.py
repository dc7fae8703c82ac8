"""The course's own machinery: set-up, running and storing the lessons, their pages, their checks, README."""

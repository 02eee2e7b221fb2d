-- YCSB: one table, 10 columns of 100 bytes of random text (paper §4.1).
-- MySQL 5.6 and the engine parse this same file; the table COMMENT carries what only the engine needs.
CREATE TABLE usertable (
  ycsb_key BIGINT NOT NULL,
  field0 CHAR(100) NOT NULL,
  field1 CHAR(100) NOT NULL,
  field2 CHAR(100) NOT NULL,
  field3 CHAR(100) NOT NULL,
  field4 CHAR(100) NOT NULL,
  field5 CHAR(100) NOT NULL,
  field6 CHAR(100) NOT NULL,
  field7 CHAR(100) NOT NULL,
  field8 CHAR(100) NOT NULL,
  field9 CHAR(100) NOT NULL,
  PRIMARY KEY (ycsb_key)
) ENGINE = InnoDB DEFAULT CHARSET = latin1 COMMENT = 'evictable; partition by ycsb_key';
